"""What a statement is once its trimmings are off, so that what ended can be held against what was: pure.

Invariant: only what limits nothing is taken away: how many, since when, and what merely follows from the statement.
"""

import re
from collections.abc import Sequence
from typing import Final

from app.remember.statement import Statement, statement
from app.remember.wording import STANDS_FOR

_COUNTED: Final = re.compile(
    r"[了过着]?(?:一|两|几|好几|\d+)(?:只|条|个|辆|台|部|份|杯|间|套|本|张|位|名|款|家)(?=[\u3400-\u9fff])"
)
_LONG_SINCE: Final = re.compile(
    r"(?:早就|早已|后来|终于|去年|前年|今年|上个?月|上周|昨天|前天|年初|前阵子|前段时间|以前|从前|过去|原来)(?:已经|就|也)?"
)
_FOR_LONG: Final = re.compile(
    r"(?:快|都|有|已经)*(?:\d+|[一两三四五六七八九十半几多好]+)(?:多)?个?(?:天|周|星期|月|年)(?:多|半)?$"
    r"|(?:很久|好久|好几年)$"
    r"|(?: (?:for|about|over|almost|nearly|more than))*(?: (?:an?|one|two|three|four|five|six|\d+|last|this|many"
    r"|several|few|some))+ (?:days?|weeks?|months?|years?)(?: ago| now)?$"
    r"|(?: since(?: \w+){1,2}| in (?:weeks|months|years|ages))$"
    r"|(?: yesterday| recently| for good| completely| altogether| entirely| at all)$"
)
_FOLLOWS: Final = re.compile(
    r"[，,;；。]\s*(?:所以|因此|因而|故)?(?:绝对|完全|一点|都|也)*(?:不能|不可以|不吃|不喝|不要|不会|别|无法|没法|不可)[^，,;；。]*[。.!！]?$"
    r"|[,;.]?\s+(?:so|and|and so|and therefore)\s+(?:i |we )?(?:can't|cannot|can not|don't|do not|never|must not)\b"
    r"[^,;.]*\.?$"
)
_SAME_THING: Final = re.compile(r"\b(?:them|it|any|those|these|that)\b|它|这|任何|相关")
_JOINED: Final = re.compile(r"[和与跟及、]|以及|\b(?:and|or)\b|,")
_AFTER_A_THING: Final = re.compile(
    r"(?:an?|the|every|each|per|on|in|at|with|for|from|by|to|of|twice|once|daily|weekly|often|always|regularly|usually"
    r"|constantly|since|when|while|because|during|before|after|near|here|there|now|myself|alone|all|most|some|very|too"
    r"|any ?more|any|again|and|or|but|as)"
)
_WORD: Final = re.compile(r"[a-z][a-z'-]*")
_EMPLOYED: Final = re.compile(
    r"在(?P<zh>[^，。,;在]{2,16}?)(?:工作|上班|任职|就职|供职)[。.!！]*$|(?:任职于|就职于|供职于)(?P<at>[^，。,;]{2,16})[。.!！]*$"
    r"|\bwork(?:ing|s)? (?:at|for) (?P<en>[^,.;]{2,30})[.!]*$"
)
_PLACE_AT_HOME: Final = re.compile(r"^(?:家|家里|国外|海外|外地|本地|当地|home|the moment|night)$")


def not_since_when(before: str, behind: str) -> tuple[str, str]:
    """What stands before and behind words of an end, without since when that is so: 早就, two years ago."""
    return _LONG_SINCE.sub("", before), _FOR_LONG.sub("", behind)


def plain(old: str) -> Statement:
    """An old statement without how many of a thing there are, and without what only follows from it.

    「我对芒果过敏，不能吃芒果」 is 「我对芒果过敏」; of 「我对芒果过敏，不能喝酒」 nothing is left out.
    """
    folded = statement(old).folded
    found = _FOLLOWS.search(folded)
    if found is not None:
        head = statement(folded[: found.start()])
        tail = statement(found[0])
        things = [word for word in head.words if word[0] not in "@?"]
        if _SAME_THING.search(found[0]) or any(word in tail.vocabulary or word in tail.joined for word in things):
            return statement(_COUNTED.sub(" ", head.folded))
    shorter = _COUNTED.sub(" ", folded)
    return statement(shorter) if shorter != folded else statement(old)


def names_another(about: Sequence[str], rest: Sequence[str], old: Statement) -> bool:
    """Whether what an old statement has beside what ended is another thing: joined to it, or it is made of both.

    `about` are the words that ended, `rest` those that only the old one has: peanuts in "mangoes and peanuts", pollen
    in "mango pollen"; none in "coffee every morning".
    """
    if not rest:
        return False
    if _JOINED.search(old.folded):
        return True
    words = _WORD.findall(old.folded)
    stems = [STANDS_FOR.get(stem, stem) for word in words for stem in statement(word).words or ("",)]
    places = [place for place, stem in enumerate(stems) if stem in about] if len(stems) == len(words) else []
    after = words[places[-1] + 1] if places and places[-1] + 1 < len(words) else ""
    return bool(after) and _AFTER_A_THING.fullmatch(after) is None


def employed(old: Statement) -> bool:
    """Whether a statement says for whom somebody works, and nothing else."""
    found = _EMPLOYED.search(old.folded)
    employer = found and (found["zh"] or found["at"] or found["en"])
    if not employer or _PLACE_AT_HOME.match(employer):
        return False
    return bool(statement(employer).things - {"@1"}) or (not employer.isascii() and not statement(employer).names)
