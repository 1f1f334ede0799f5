"""What a text states, taken apart: numbers, codes, negations, qualifiers, people and content words in one spelling.

Invariant: pure and deterministic; texts that spell the same thing differently state the same.
"""

import re
import unicodedata
from collections import Counter
from functools import lru_cache
from typing import Final

import rjieba

from app.language import fold, stem
from app.remember.wording import (
    ASKING,
    CUT_OUT,
    EITHER_WAY,
    FUNCTION,
    KIN_AND_ROLES,
    NEGATION,
    PERSONS,
    QUALIFIERS,
    STANDS_FOR,
    UNITS,
)

REMEMBERED_TEXTS: Final = 8192
STATEMENT_WORDS: Final = 14
NAMED_STATEMENT_WORDS: Final = 8
_NUMBER = re.compile(r"\d+(?:[.:/-]\d+)*")
_CODE = re.compile(r"[a-z]+\d[a-z0-9]*|\d+[a-z][a-z0-9]*|[a-z0-9]+(?:[-_.@][a-z0-9]+)+")
_NUMERAL = re.compile("[零〇一二两三四五六七八九十百千万亿半]+")
_ANY_NUMBER = re.compile(f"{_NUMBER.pattern}|{_NUMERAL.pattern}")
_DIGITS = dict(zip("零〇一二两三四五六七八九", (0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9), strict=True))
_UNITS_OF_TEN = {"十": 10, "百": 100, "千": 1_000, "万": 10_000, "亿": 100_000_000}
_MEASURE = re.compile(
    r"(?<=\d)\s{0,3}(cm|mm|km|kg|g|m|ml|l|gb|mb|h|min|厘米|公分|毫米|公里|千米|千克|公斤|米)(?![a-z])"
)
_HAN = re.compile("[\u3400-\u9fff]")
_LATIN_NAME = re.compile(r"\b[A-Z][\w'’-]*")
_NAME_TAGS: Final = ("nr", "ns", "nt", "nz", "t", "eng")  # person, place, organisation, other name, time, foreign word
_ROLE = re.compile(
    "(" + "|".join(sorted((r for r in KIN_AND_ROLES if len(r) > 1 and not r.isascii()), key=len, reverse=True))
    + f"|{CUT_OUT})"
)  # fmt: skip
_MY_PARENT = re.compile(r"我([爸妈])(?!\1)")
_LIKES_TO = re.compile("(?<![可恋热疼])爱(?=[吃喝看玩听用穿去])")  # one word with its verb, as it is cut
_NEVER_NAMES = frozenset(
    ["the", "a", "an", "my", "his", "her", "their", "our", "your", "it", "this", "that", "he", "she", "they", "we",
     "you", "user", "i", "there", "if", "on", "in", "at", "for", "when", "what", "how", "who", "why", "where", "to",
     "please"]
)  # fmt: skip


class Statement:
    """One text. `words` are its content words in order, in the spelling of their synonyms' first; `@1` `@2` stand for
    who speaks and who is spoken to, `?…` for what is asked. `numbers` come in order. `things`
    are nouns but names of places; any English word counts as one."""

    __slots__ = (
        "asking", "codes", "folded", "joined", "names", "negations", "numbers", "people", "personal", "persons",
        "qualifiers", "roles", "things", "tokens", "vocabulary", "words",
    )  # fmt: skip

    def __init__(self, text: str) -> None:
        self.folded = folded = folded_statement(text)
        self.numbers = tuple(map(_number, (found for found in _ANY_NUMBER.findall(folded) if found != "一")))
        self.codes = frozenset(_CODE.findall(folded))
        self.negations = len(NEGATION.findall(EITHER_WAY.sub("?", folded)))
        self.qualifiers = Counter(QUALIFIERS.findall(folded))
        pieces: list[str] = []
        words: list[str] = []
        names: set[str] = set()
        people: set[str] = set()
        things: set[str] = set()
        for piece, tag in _cut(folded):
            word, name, person = _word(piece, tag, text, first=not pieces)
            pieces.append(piece)
            if word is None:
                continue
            words.append(word)
            if word.isascii() or (tag.startswith("n") and tag != "ns"):
                things.add(word)
            if name:
                names.add(word)
            if person:
                people.add(word)
        self.joined = "".join(pieces)
        self.words = tuple(words)
        self.vocabulary = frozenset(words)
        self.tokens = self.vocabulary | frozenset(pieces)
        self.names = frozenset(names)
        self.things = frozenset(things)
        self.roles = self.vocabulary & KIN_AND_ROLES
        self.people = tuple(dict.fromkeys(word for word in words if word in KIN_AND_ROLES or word in people))
        self.persons = frozenset(word for word in words if word[0] == "@")
        self.asking = frozenset(word for word in words if word[0] == "?")
        self.personal = (
            not self.asking
            and not folded.rstrip().endswith("?")
            and "@2" not in self.persons
            and len(words) <= STATEMENT_WORDS
            and (
                "@1" in self.persons or bool(self.roles) or (bool(self.people) and len(words) <= NAMED_STATEMENT_WORDS)
            )
        )


@lru_cache(maxsize=REMEMBERED_TEXTS)
def folded_statement(text: str) -> str:
    """A text in one spelling, its units of measure too: enough for a first look, a tenth of a statement's time."""
    return _MEASURE.sub(lambda found: f" {UNITS.get(found[1], found[1])} ", fold(text))


@lru_cache(maxsize=REMEMBERED_TEXTS)
def statement(text: str) -> Statement:
    """What a text states, remembered: the same neighbours are compared again and again."""
    return Statement(text)


def _cut(folded: str) -> list[tuple[str, str]]:
    """Pieces that hold a letter or digit, with their tag; kin and roles are cut out first, whatever stands around."""
    apart = _ROLE.sub(r" \1 ", _MY_PARENT.sub(r"我 \1\1 ", _LIKES_TO.sub("喜欢 ", folded)))
    cut = ((piece.strip(), tag) for piece, tag in rjieba.tag(apart))
    return [(piece, tag) for piece, tag in cut if any(map(str.isalnum, piece))]


def _word(piece: str, tag: str, text: str, *, first: bool) -> tuple[str | None, bool, bool]:
    """The content word of a piece (None: it carries no fact), and whether it is a name, and of a person."""
    if _HAN.search(piece):
        word, name = piece, tag.startswith(_NAME_TAGS)
        person = tag.startswith("nr")
    else:
        name = person = piece in _latin_names(text) and not (first and piece in _NEVER_NAMES)
        word = stem(piece) if piece.isalpha() else piece
    word = STANDS_FOR.get(word, word)
    if piece in PERSONS:
        return PERSONS[piece], False, False
    if word in ASKING and (first or "?" in text or not word.isascii()):  # in English also what, who, which relate
        return ASKING[word], False, False
    if piece in FUNCTION or word in FUNCTION:
        return None, False, False
    return word, name, person


@lru_cache(maxsize=64)
def _latin_names(text: str) -> frozenset[str]:
    found = _LATIN_NAME.findall(unicodedata.normalize("NFKC", text))
    return frozenset(fold(name).removesuffix("'s") for name in found)


def _number(found: str) -> str:
    """A number as digits, whatever its script."""
    return found if found[0].isdecimal() else str(_value(found))


def _value(numeral: str) -> int | str:
    """A Chinese numeral as an integer; 半 and mere runs of digits (二〇二四) included."""
    if "半" in numeral:
        return numeral
    if not any(character in _UNITS_OF_TEN for character in numeral):
        return int("".join(str(_DIGITS[character]) for character in numeral))
    total, section, digit = 0, 0, 0
    for character in numeral:
        if character in _DIGITS:
            digit = _DIGITS[character]
        elif _UNITS_OF_TEN[character] >= 10_000:
            total, section, digit = (total + section + digit) * _UNITS_OF_TEN[character], 0, 0
        else:
            section, digit = section + (digit or 1) * _UNITS_OF_TEN[character], 0
    return total + section + digit
