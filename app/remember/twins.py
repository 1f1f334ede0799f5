"""Do two texts say the same? Similarity proposes, this verdict decides: pure, and in doubt it says no.

Numbers, dates, codes, names, negation and opposites are compared before any verdict "same"; a difference in one of
them is a difference in fact however close the vectors are.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import rjieba

from app.language import fold, words

LONG_WORDS = 8
LEAST_OVERLAP = 0.5
_NUMBER = re.compile(r"\d+(?:[.:/-]\d+)*")
_CODE = re.compile(r"[a-z]+\d[a-z0-9]*|\d+[a-z][a-z0-9]*|[a-z0-9]+(?:[-_.@][a-z0-9]+)+")
_CHINESE_NUMERAL = re.compile("[零〇一二两三四五六七八九十百千万亿半]+")
_DIGITS = dict(zip("零〇一二两三四五六七八九", (0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9), strict=True))
_UNITS = {"十": 10, "百": 100, "千": 1_000, "万": 10_000, "亿": 100_000_000}
_NEGATION = re.compile(
    r"不|没|无(?!锡|线)|非(?!常)|未|别(?!人|的|墅)|勿|莫|禁止|拒绝|取消|\bnot?\b|n't\b|\bcannot\b|\bnever\b|\bwithout\b|\bnone\b"
    r"|\bnobody\b|\bnothing\b|\bneither\b|\bnor\b|\brefuses?d?\b|\bcancell?(?:s|ed)?\b|\bstop(?:s|ped)?\b|\bquit\b"
)
_LATIN_NAME = re.compile(r"\b[A-Z][\w'’-]*")
_NAME_TAGS = ("nr", "ns", "nt", "nz", "t", "eng")  # person, place, organisation, other proper name, time, foreign word
_OPPOSITES = tuple(
    (frozenset(left.split()), frozenset(right.split()))
    for left, right in (
        ("喜欢 爱 喜爱 热爱 爱吃", "讨厌 恨 厌恶 反感 害怕"),
        ("上午 早上 早晨 凌晨", "下午 晚上 傍晚 夜里"),
        ("上周 上个月 上次 去年 昨天", "下周 下个月 下次 明年 明天"),
        ("开 打开 开启 启用 开始", "关 关闭 停用 禁用 结束"),
        ("同意 接受 批准 通过", "反对 驳回 否决"),
        ("买 买入 购买 收入 存", "卖 卖出 出售 支出 取"),
        ("增加 上升 提高 涨", "减少 下降 降低 跌"),
        ("左 前 里 内", "右 后 外"),
        ("男 父亲 爸爸 儿子 丈夫 哥哥", "女 母亲 妈妈 女儿 妻子 姐姐"),
        ("like love enjoy prefer adore", "dislike hate detest avoid loath"),
        ("morn am", "afternoon even pm night"),
        ("last previous yesterday", "next tomorrow"),
        ("open enabl start begin on", "close disabl end finish off"),
        ("accept approv agre", "reject declin disagre deni"),
        ("buy bought incom deposit", "sell sold expens withdraw"),
        ("increas rise higher more", "decreas fall lower less"),
        ("left front before first", "right back after last"),
        ("father dad son husband brother his he", "mother mom daughter wife sister her she"),
        ("always alway", "never rare seldom"),
    )
)


def say_the_same(left: str, right: str) -> bool:
    """Whether two texts that are close as vectors agree in everything that must not differ; symmetric."""
    a, b = _facts(left), _facts(right)
    return (
        a.numbers == b.numbers
        and a.codes == b.codes
        and a.negations == b.negations
        and a.names <= b.tokens
        and b.names <= a.tokens
        and _in_order(a.ordered_names, b.ordered_names)
        and not _opposed(a.tokens, b.tokens)
        and _overlap(a.words, b.words) >= LEAST_OVERLAP
    )


def _in_order(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether the names that both have come in the same order: who did it to whom."""
    both = set(a) & set(b)
    return [name for name in a if name in both] == [name for name in b if name in both]


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    """Share of their words that two long texts have in common; 1 for short ones, whose vectors are fine enough."""
    return len(a & b) / len(a | b) if min(len(a), len(b)) >= LONG_WORDS else 1.0


class _Facts:
    __slots__ = ("codes", "names", "negations", "numbers", "ordered_names", "tokens", "words")

    def __init__(self, text: str) -> None:
        folded = fold(text)
        self.numbers = Counter(_NUMBER.findall(folded))
        self.numbers.update(str(_value(numeral)) for numeral in _CHINESE_NUMERAL.findall(folded))
        self.codes = frozenset(_CODE.findall(folded))
        self.negations = len(_NEGATION.findall(folded))
        latin = [fold(name).removesuffix("'s") for name in _LATIN_NAME.findall(unicodedata.normalize("NFKC", text))]
        tagged = rjieba.tag(folded) if not folded.isascii() else []
        han = [word for word, tag in tagged if tag.startswith(_NAME_TAGS) and not word.isascii()]
        self.words = frozenset(words(text))
        self.tokens = frozenset(re.findall(r"[\w'-]+", folded)) | self.words | {word for word, _ in tagged}
        self.tokens |= {token.removesuffix("'s") for token in self.tokens}
        self.names = frozenset((*latin, *han)) - _NOT_NAMES
        self.ordered_names = tuple(dict.fromkeys(name for name in (*latin, *han) if name in self.names))


_NOT_NAMES = frozenset(
    ["i", "i'm", "i'd", "i've", "i'll", "the", "a", "an", "my", "his", "her", "their", "our", "your", "it", "this",
     "that", "he", "she", "they", "we", "you", "user"]
)  # fmt: skip


@lru_cache(maxsize=4096)
def _facts(text: str) -> _Facts:
    return _Facts(text)


def _value(numeral: str) -> int | str:
    """A Chinese numeral as an integer; 半 and mere runs of digits (二〇二四) included."""
    if "半" in numeral:
        return numeral
    if not any(character in _UNITS for character in numeral):
        return int("".join(str(_DIGITS[character]) for character in numeral))
    total, section, digit = 0, 0, 0
    for character in numeral:
        if character in _DIGITS:
            digit = _DIGITS[character]
        elif _UNITS[character] >= 10_000:
            total, section, digit = (total + section + digit) * _UNITS[character], 0, 0
        else:
            section, digit = section + (digit or 1) * _UNITS[character], 0
    return total + section + digit


def _opposed(a: frozenset[str], b: frozenset[str]) -> bool:
    only_a, only_b = a - b, b - a
    return any((only_a & left and only_b & right) or (only_a & right and only_b & left) for left, right in _OPPOSITES)
