"""The one tokenizer, for writing and for asking: text to search words, character grams and a normal form.

Invariant: a text and a query that spell the same thing differently (width, case, accents, traditional or simplified
characters, thousands separators) give the same terms. Change a rule, raise TOKENIZER_VERSION.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import resources
from itertools import product
from typing import Generic, NamedTuple, TypeVar

import rjieba
import Stemmer

T = TypeVar("T")
TOKENIZER_VERSION = 1
REMEMBERED_TEXTS = 1024
SHORT_TERM = 4  # characters: a day, a year, a gram

_FUNCTION_WORDS = """
a about am an and any are as at be been being but by can could did do does for from had has have he her hers him
his how i if in into is it its me my of on or our ours shall she should so some that the their them then there
these they this those to too us was we were what when where which who whom whose why will with would you your yours
的 地 得 了 着 过 是 在 有 和 与 或 及 也 都 就 还 又 而 但 把 被 给 对 向 从 到 为 于 之 所 以 这 那 其 此
我 你 您 他 她 它 我们 你们 您们 他们 她们 它们 自己 咱们 吗 呢 啊 吧 呀 嘛 哦 哈 嗯 啦 么
什么 怎么 怎样 怎么样 如何 多少 哪 哪里 哪儿 哪些 哪个 谁 几 为什么 是否 一个 这个 那个 这些 那些 这里 那里
请 请问 可以 能 能够 会 要 想
"""
_STOP_WORDS = frozenset(_FUNCTION_WORDS.split())
_STOP_CHARACTERS = frozenset(word for word in _STOP_WORDS if len(word) == 1 and word > "\u3400")
_STOP_PAIRS = frozenset(map("".join, product(_STOP_CHARACTERS, repeat=2))) | _STOP_WORDS

# A Han run; a run of other scripts without blanks (kana, hangul, Thai …); a word, number or code with its connectors.
_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\uac00-\ud7af"
_WORD = f"[^\\W_{_HAN}{_UNSPACED}]+"
_RUNS = re.compile(f"([{_HAN}]+)|([{_UNSPACED}]+)|({_WORD}(?:[-_.@+'&]{_WORD})*)")
_LETTERS_OR_DIGITS = re.compile(r"\d+|[^\W\d_]+")
_CONNECTORS = re.compile(r"[-_.@+'&]")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ASCII_RUNS = re.compile(r"[a-z0-9]+(?:[-_.@+'&][a-z0-9]+)*")  # the same rule, 10 times faster
_ACCENTED = re.compile("[\u00c0-\u024f\u1e00-\u1eff]")
_OPENING = " \"'`([{<“‘「『【《〈"
_CLOSING = " \"'`)]}>”’」』】》〉.,;:!…~。、·—"  # no question mark: asking and stating are not the same text
_CONTRACTED = frozenset(["s", "m", "re", "ve", "ll", "d", "t"])  # she's, I'm, we're, I've, you'll, he'd, don't

_stem = Stemmer.Stemmer("english").stemWord


def stem(word: str) -> str:
    """The stem of an English word in lower case."""
    found: str = _stem(word)
    return found


def _simplified_table() -> dict[str, str]:
    """Traditional character -> simplified, from the OpenCC table (Apache-2.0) that its Python package carries."""
    table = resources.files("opencc").joinpath("dictionary/TSCharacters.txt").read_text(encoding="utf-8")
    rows = (line.split() for line in table.splitlines())
    return {row[0]: row[1] for row in rows if len(row) > 1 and row[0] != row[1] and len(row[1]) == 1}


_SIMPLIFIED = _simplified_table()
_TRADITIONAL = frozenset(_SIMPLIFIED)
_TO_SIMPLIFIED = str.maketrans(_SIMPLIFIED)


def fold(text: str) -> str:
    """One spelling of a text: NFKC, case folded, simplified characters, no accents on Latin letters."""
    if text.isascii():
        return text.lower()
    text = _evened(text).replace("\u2019", "'")
    if _ACCENTED.search(text):
        letters = unicodedata.normalize("NFD", text)
        text = unicodedata.normalize("NFC", "".join(c for c in letters if not "\u0300" <= c <= "\u036f"))
    return text


def fold_aligned(text: str) -> tuple[str, list[int]]:
    """The fold of a text character by character, and from which character of the text each one of it comes."""
    folded = fold(text)
    if len(folded) == len(text):
        return folded, list(range(len(text)))
    pieces = [fold(character) for character in text]
    return "".join(pieces), [at for at, piece in enumerate(pieces) for _ in piece]


@lru_cache(maxsize=REMEMBERED_TEXTS)
def _evened(text: str) -> str:
    """NFKC, case folded, simplified: what every form of a text begins with, so a write asks three times."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKC", text).casefold()
    # Most texts hold no traditional character, and asking the set first is 30 times faster than translating.
    return text if _TRADITIONAL.isdisjoint(text) else text.translate(_TO_SIMPLIFIED)


def words(text: str) -> list[str]:
    """Search words in order, repeated as in the text: Chinese segments, English stems, codes whole and by their parts.

    Stop words of both languages are left out, so a text of nothing else gives an empty list.
    """
    return terms(text)[0]


def grams(text: str) -> list[str]:
    """Character grams in order: pairs of Chinese characters, 4-grams of other words; function words give none."""
    return terms(text)[1]


def terms(text: str) -> tuple[list[str], list[str]]:
    """The words and the grams of a text in one pass."""
    return read(text, _SPELLED)


class Lexicon(NamedTuple, Generic[T]):
    """What terms are written down as, one look-up each: as they are spelled, or as numbers.

    `word` is asked for Chinese words, `pair` for pairs of characters (and lone ones); what is falsy is left out. `run`
    gives the words and the grams of letters, digits and connectors.
    """

    word: Callable[[str], T]
    pair: Callable[[str], T]
    run: Callable[[str], tuple[Sequence[T], Sequence[T]]]


def read(text: str, lexicon: Lexicon[T]) -> tuple[list[T], list[T]]:
    """The words and the grams of a text, each as the lexicon has it."""
    word, pair, of_run = lexicon
    found_words: list[T] = []
    found_grams: list[T] = []
    text = fold(text)
    if "," in text:
        text = _THOUSANDS.sub("", text)
    if text.isascii():
        for of_word, of_gram in map(of_run, _ASCII_RUNS.findall(text)):
            found_words += of_word
            found_grams += of_gram
        return found_words, found_grams
    for han, unspaced, run in _RUNS.findall(text):
        if han:
            found_words += filter(None, map(word, rjieba.cut_for_search(han)))
            found_grams += filter(None, map(pair, _pairs(han)))
        elif run:
            of_word, of_gram = of_run(run)
            found_words += of_word
            found_grams += of_gram
        else:
            pairs = _pairs(unspaced)
            found_words += filter(None, map(word, pairs))
            found_grams += filter(None, map(pair, pairs))
    return found_words, found_grams


def _pairs(run: str) -> list[str]:
    """Pairs of neighbouring characters; a lone character stands for itself."""
    return list(map(str.__add__, run, run[1:])) or [run]


def is_function_word(word: str) -> bool:
    """Whether a word says nothing by itself, in either language."""
    return word in _STOP_WORDS


def is_function_pair(pair: str) -> bool:
    """The same of two characters, or of a lone one."""
    return pair in _STOP_PAIRS


def comes_again(term: str) -> bool:
    """Whether a term is worth remembering: long codes and numbers have no end and would take the room of words."""
    return len(term) <= SHORT_TERM or term.isalpha()


def terms_of_run(run: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words and grams of one run of letters, digits and connectors: `a-1024` gives `a-1024`, `a`, `1024`."""
    head, apostrophe, tail = run.rpartition("'")
    if apostrophe and tail in _CONTRACTED:
        # She's and Jon's are the word before; in don't the whole is a function word, the `n` would mislead.
        return ((), ()) if tail == "t" else terms_of_run(head)
    if run.isalpha():
        return _terms_of_word(run)
    whole = [run, *run.split("@")] if "@" in run else [run]
    parts = [p for piece in _CONNECTORS.split(run) for p in (piece, *_LETTERS_OR_DIGITS.findall(piece))]
    kept = [_stem(p) if p.isalpha() else p for p in parts if p not in _STOP_WORDS]
    return tuple(dict.fromkeys([*whole, *kept])), _four_grams(run)


@lru_cache(maxsize=1 << 14)
def _terms_of_word(word: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The same of letters alone: words come again, codes and numbers hardly do."""
    return ((), ()) if word in _STOP_WORDS else ((_stem(word),), _four_grams(word))


def _four_grams(run: str) -> tuple[str, ...]:
    return tuple(run[i : i + 4] for i in range(max(1, len(run) - 3)))


_SPELLED = Lexicon(
    lambda word: "" if word in _STOP_WORDS else word, lambda pair: "" if pair in _STOP_PAIRS else pair, terms_of_run
)


def normalise(text: str) -> str:
    """The form whose equality means "the same text": NFKC, case folded, simplified, blanks collapsed, no outer quotes,
    brackets or closing punctuation.

    Accents, digits, signs, inner punctuation and question marks are kept: they can change what is said. A text of
    punctuation only is its own normal form, so that 「！」 and 「。」 stay different.
    """
    folded = " ".join(_evened(text).split())
    return folded.lstrip(_OPENING).rstrip(_CLOSING) or folded
