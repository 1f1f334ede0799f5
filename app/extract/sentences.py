"""A message taken apart: sentences, their clauses, who they are about, and which of them state something; pure.

Invariant: nothing is reworded. What comes out is a piece of what was said, less questions, suppositions and requests.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, cast

from app.extract.conversation import Skip
from app.extract.triggers import COMMAND, HYPOTHETICAL, I_ZH, NOT_A_REQUEST, QUESTION, RELATIVES, REQUEST, TAG
from app.language import fold, fold_aligned

LONGEST: Final = 600
"""Characters of a sentence; a longer one is no statement but a document."""

Subject = Literal["user", "other", "pronoun", "nobody", "reported"]

_PIECES = re.compile(r"[^。！？!?；;\n]+[。！？!?；;]*")
_FULL_STOP = re.compile(r"(?<=[a-z0-9)\]\"'”])\.(?:\s+)(?=[A-Z\"“'(\u3400-\u9fff])")
_ABBREVIATED = re.compile(r"\b(?:mr|mrs|ms|dr|prof|st|no|vs|etc|e\.g|i\.e|jr|sr|inc|ltd|co)$", re.IGNORECASE)
_MARKER = re.compile(r"^\s*(?:[-*•·>#]+|\d{1,2}[.、)）](?!\d)|[（(]\d{1,2}[)）])\s*")
_COMMA = re.compile(r"[，,](?!\d)\s*|、(?=我)|\s+(?:and|but)\s+(?=(?:i|my|i'm|i've)\b)", re.IGNORECASE)
_FILLER = re.compile(
    r"^(?:(?:对了|是的|对的?|没错|好的?|好嘞|行|可以|喂|你好|您好|其实|那个|嗯+|哦+|啊|另外|还有|然后|话说"
    r"|顺便(?:说一下|说一句)?|就是说?"
    r"|你知道吗|跟你说|告诉你|by the way|btw|well|oh|so|also"
    r"|yes|yeah|yep|no|nope|sure|fine|alright|great|right|wait|hello|good morning|good afternoon|good evening"
    r"|anyway|actually|you know|and|hey|hi|ok|okay|fyi|just so you know)[，,:：!！\s]+)+",
    re.IGNORECASE,
)
_WHOLLY_QUOTED = frozenset(['""', "“”", "「」", "『』"])
_QUOTED = re.compile(r"[“「『\"][^”」』\"]{7,}[”」』\"]")
_EDGE = " \t，,、：:;；-—"

_QUESTION, _TAG, _HYPOTHETICAL, _COMMAND = QUESTION.pattern, TAG.pattern, HYPOTHETICAL.pattern, COMMAND.pattern
_REQUEST = REQUEST.pattern
_NOT_A_REQUEST = NOT_A_REQUEST.pattern
_ASKS_WITH_MA = re.compile(r"(?:吗|么)[。.!！~?？]*$")
_POLITE = re.compile(r"(?:好吗|可以吗|行吗|好不好|行不行|吗|okay|ok|please|谢谢|thanks|thank you)?[?？。.!！~\s]*$")
_HEADING = re.compile(r"^(?:以下|下面|如下|下列|这些|几点|内容|信息|the following|this|these|things?)*[\s:：。.]*$")

_OTHER = re.compile(
    rf"{I_ZH}(?:的|家里的?|家的?|们的)?(?:大|小|二|三|老|前|亲|干)?{RELATIVES.zh}|\b(?:my"
    rf"|our)\s+(?:[\w-]+\s+){{0,2}}?{RELATIVES.en}\b"
)
_PRONOUN = re.compile(r"(?:^|[，,\s])(?:他们?|她们?|它们?)(?!人)|\b(?:he|she|they)\b")
_DEMONSTRATIVE = re.compile(r"^(?:这|那(?!么)|它|他|她|it\b|this\b|that\b|he\b|she\b|they\b|these\b|those\b)")
_FRAGMENT = re.compile(
    r"^(?:对于|关于|至于|说到|说起|那个|这个|在.{0,12}(?:时|里|中|上)$|当|因为|由于|既然|除了|根据|按照|以上|以下"
    r"|请问)|(?:的人|的活动|的时候|的话|时|的)$"
    r"|^(?:as for|about|regarding|concerning|for|since|because|when|while|besides|given|of|among|considering)\b"
)
"""What is left of a question that names its topic first."""
_SURNAME = (
    "[王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗梁宋郑谢韩唐冯于董萧程曹袁邓许傅沈曾彭吕苏卢蒋蔡贾丁魏薛叶阎余潘杜戴夏钟汪田任姜范方石姚谭廖邹"
    "熊金陆郝孔白崔康毛邱秦江史顾侯邵孟龙万段雷钱汤尹黎易常武乔贺赖龚文]|欧阳|司马|上官|诸葛"
)
_NAMED = re.compile(
    rf"^(?:(?:{_SURNAME})[\u4e00-\u9fff]{{1,2}}|(?:大|小|二|三|老)?{RELATIVES.zh})"
    r"(?=(?:今年|现在|也|很|最|特别|非常|都|还|他|她|就|家|不|比较)*(?:喜欢|讨厌|爱|是|在|住|叫|对|有|没|的|会|养"
    r"|从事|来自|毕业|念|身高|\d))"
)
_SPEAKER = re.compile(rf"{I_ZH}|\b(?:i|we|my|our|me|i'm|i've)\b")
_REPORT = re.compile(
    r"^[^我i]{1,10}(?:说|觉得|认为|以为|问|告诉|提到|嫌|夸|骂)"
    r"|^(?!i\b|my\b|we\b)[\w' ]{1,30}\b(?:said|says|thinks?|told|asked|believes?)\b"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A sentence less the request to remember it; `rest` is empty where the request stands alone."""

    rest: str


def sentences(text: str) -> list[str]:
    """The sentences of a text without list markers and leading fillers; those of over 600 characters are left out."""
    found = []
    for piece in _PIECES.findall(text):
        start = 0
        for stop in _FULL_STOP.finditer(piece):
            if not _ABBREVIATED.search(piece[: stop.start()]):
                found.append(piece[start : stop.start() + 1])
                start = stop.end()
        found.append(piece[start:])
    cleaned = (_FILLER.sub("", _MARKER.sub("", sentence).strip()) for sentence in found)
    cleaned = (one.strip('"“”「」『』') if one[:1] + one[-1:] in _WHOLLY_QUOTED else one for one in cleaned)
    return [one for one in cleaned if len(one) <= LONGEST and any(map(str.isalnum, one))]


def clauses(sentence: str) -> list[str]:
    """The clauses of a sentence."""
    return [part.strip(_EDGE) for part in _COMMA.split(sentence) if part.strip(_EDGE)]


def shown_folded(text: str) -> str:
    """The fold of a text in which what somebody is quoted with is blank: nobody's own statement."""
    return fold(_QUOTED.sub(lambda quoted: " " * len(quoted[0]), text))


def asks(text: str) -> bool:
    """Whether a text is, or holds, a question; in Chinese often without a question mark."""
    folded = fold(text)
    return "?" in folded or bool(_QUESTION.search(folded))


def is_command(sentence: str) -> bool:
    """Whether a sentence gives a task of the moment."""
    return bool(_COMMAND.search(shown_folded(sentence)))


def stated(sentence: str) -> tuple[str, Skip | None]:
    """What of a sentence is a statement, and why nothing is: a question or a supposition.

    「我对芒果过敏，能吃这个吗？」 states its first clause; 「如果下雨，我就不去」 states nothing.
    """
    asks = sentence.rstrip("。.!！~ ").endswith(("?", "？"))
    parts = clauses(sentence)
    kept: list[str] = []
    dropped: Skip | None = None
    for number, part in enumerate(parts):
        folded = shown_folded(part).strip("?？!！。.~ ")
        if _HYPOTHETICAL.search(folded):
            dropped = "hypothetical"
            break
        if _TAG.search(folded):
            dropped = "question"
            kept = kept[:-1]
        elif _QUESTION.search(folded) or (asks and number == len(parts) - 1):
            dropped = "question"
        else:
            kept.append(part)
    if dropped is None:
        return sentence.strip(_EDGE), None
    kept = [part for part in kept if not _FRAGMENT.search(fold(part))]
    joint = "，" if re.search(r"[\u3400-\u9fff]", sentence) else ", "
    return joint.join(kept), None if kept else dropped


def asked_to_keep(sentence: str) -> Asked | None:
    """The rest of a sentence that asks to remember it, or None if it does not ask."""
    folded, origin = fold_aligned(sentence)
    match = _REQUEST.search(folded)
    if match is None or _NOT_A_REQUEST.search(folded):
        return None
    before, after = sentence[: origin[match.start()]], sentence[origin[match.end() - 1] + 1 :]
    if _ASKS_WITH_MA.search(folded) and not re.search("记一下|记住|记下", match[0]):
        return None
    end = _POLITE.search(after)
    rest = (before.strip(_EDGE) + ("，" if before.strip(_EDGE) and after.strip(_EDGE) else "")) + after[
        : end.start() if end else None
    ].strip(_EDGE)
    folded_rest = fold(rest)
    if _QUESTION.search(folded_rest):
        return None
    return Asked("" if _HEADING.match(folded_rest) else rest)


def requests_to_keep(text: str) -> list[str]:
    """What the sentences of a text that ask to remember something ask to keep; empty where they do not say what."""
    return [asked.rest for asked in map(asked_to_keep, sentences(text)) if asked is not None]


def subject(sentence: str) -> Subject:
    """Who a sentence is about: the speaker, somebody of theirs, somebody only pointed at, nobody named; or it reports
    what somebody says or thinks."""
    folded = shown_folded(sentence)
    if _NAMED.match(folded):
        return "other"
    if _REPORT.search(folded) and not _OTHER.match(folded):
        return "reported"
    other, pronoun = _OTHER.search(folded), _PRONOUN.search(folded)
    speaker = next((m for m in _SPEAKER.finditer(folded) if other is None or m.start() != other.start()), None)
    places: list[tuple[int, Subject]] = []
    for match, who in ((other, "other"), (pronoun, "pronoun"), (speaker, "user")):
        if match is not None:
            places.append((match.start(), cast("Subject", who)))
    return min(places)[1] if places else "nobody"


def points_back(sentence: str) -> bool:
    """Whether a sentence begins with a word for what the one before it named."""
    return bool(_DEMONSTRATIVE.search(shown_folded(sentence)))
