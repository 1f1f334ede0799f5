"""What a text states, taken apart: numbers, codes, negations, qualifiers, people and content words in one spelling.

Invariant: pure and deterministic; texts that spell the same thing differently state the same.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

import rjieba

from app.language import comes_again, fold, stem
from app.remember.wording import (
    ASKING,
    CUT_OUT,
    EITHER_WAY,
    ENDING,
    FUNCTION,
    KIN_AND_ROLES,
    NEGATION,
    PERSONS,
    QUALIFIERS,
    STANDS_FOR,
    UNITS,
)

REMEMBERED_TEXTS: Final = 8192
REMEMBERED_PIECES: Final = 1 << 15
STATEMENT_WORDS: Final = 14
NAMED_STATEMENT_WORDS: Final = 8
# What begins with a class of characters is looked for at a glance; a sign of repetition or a choice in front takes five
# times as long.
_NUMBER = re.compile(r"\d\d*(?:[.:/-]\d+)*")
# Only from where a run of these characters begins, and never back: so a word is looked at once.
_CODE = re.compile(r"(?<![a-z0-9])(?:[a-z]++\d[a-z0-9]*+|\d++[a-z][a-z0-9]*+|[a-z0-9]++(?:[-_.@][a-z0-9]++)++)")
_NUMERALS: Final = "零〇一二两三四五六七八九十百千万亿半"
_ANY_NUMBER = re.compile(rf"[\d{_NUMERALS}](?:(?<=\d)\d*(?:[.:/-]\d+)*|[{_NUMERALS}]*)")
_DIGITS = dict(zip("零〇一二两三四五六七八九", (0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9), strict=True))
_UNITS_OF_TEN = {"十": 10, "百": 100, "千": 1_000, "万": 10_000, "亿": 100_000_000}
_MEASURE = re.compile(r"(\d)\s{0,3}(cm|mm|km|kg|g|m|ml|l|gb|mb|h|min|厘米|公分|毫米|公里|千米|千克|公斤|米)(?![a-z])")
_SPELT: Final = {"m": " am", "ve": " have", "re": " are", "ll": " will"}
_CLITIC = re.compile(r"(?<=[a-z])'(m|ve|re|ll)\b")
_HAN = re.compile("[\u3400-\u9fff]")
_LATIN_NAME = re.compile(r"\b[A-Z][\w'’-]*")
_NAME_TAGS: Final = ("nr", "ns", "nt", "nz", "t", "eng")  # person, place, organisation, other name, time, foreign word
_ROLE = re.compile(
    "(" + "|".join(sorted((r for r in KIN_AND_ROLES if len(r) > 1 and not r.isascii()), key=len, reverse=True))
    + f"|{CUT_OUT})"
)  # fmt: skip
_MY_PARENT = re.compile(r"我([爸妈])(?!\1)")
_LIKES_TO = re.compile("爱(?<![可恋热疼]爱)(?=[吃喝看玩听用穿去])")  # one word with its verb, as it is cut
_NEVER_NAMES = frozenset(
    ["the", "a", "an", "my", "his", "her", "their", "our", "your", "it", "this", "that", "he", "she", "they", "we",
     "you", "user", "i", "there", "if", "on", "in", "at", "for", "when", "what", "how", "who", "why", "where", "to",
     "please"]
)  # fmt: skip


class _Content(NamedTuple):
    """What a text is made of once it is cut into words."""

    pieces: tuple[str, ...]
    words: tuple[str, ...]
    names: frozenset[str]
    things: frozenset[str]
    persons: frozenset[str]


T = TypeVar("T")


class _Part(Generic[T]):
    """What a statement keeps once it was asked for: cached_property without its lock, which takes longer than finding
    most parts, and which Python 3.12 has no more."""

    def __init__(self, find: Callable[[Any], T]) -> None:
        self._find, self._name = find, find.__name__

    def __get__(self, said: object, _: type | None = None) -> T:
        found = said.__dict__[self._name] = self._find(said)
        return found


class Statement:
    """One text, taken apart as far as anybody asks: to cut it into words costs ten times what finds its numbers.

    `words` are its content words in order, in the spelling of their synonyms' first; `@1` `@2` stand for
    who speaks and who is spoken to, `?…` for what is asked. `numbers` come in order. `things`
    are nouns but names of places; any English word counts as one."""

    def __init__(self, text: str) -> None:
        self._text = text
        spelt = fold(text)
        if "'" in spelt:
            spelt = _CLITIC.sub(lambda found: _SPELT[found[1]], spelt)
        self.folded = _MEASURE.sub(_measured, spelt)

    @_Part
    def numbers(self) -> tuple[str, ...]:
        numbers = _NUMBER if self.folded.isascii() else _ANY_NUMBER
        return tuple([_number(found) for found in numbers.findall(self.folded) if found != "一"])

    @_Part
    def codes(self) -> frozenset[str]:
        return frozenset(_CODE.findall(self.folded))

    @_Part
    def negations(self) -> int:
        said = self.folded
        if "不" in said or "没" in said:
            said = EITHER_WAY.sub("?", said)
        return NEGATION.count(said)

    @_Part
    def endings(self) -> int:
        return len(ENDING.findall(self.folded))

    @_Part
    def qualifiers(self) -> tuple[str, ...]:
        return tuple(sorted(QUALIFIERS.findall(self.folded)))

    @_Part
    def _content(self) -> _Content:
        return _content(self.folded, self._text)

    @_Part
    def words(self) -> tuple[str, ...]:
        return self._content.words

    @_Part
    def joined(self) -> str:
        return "".join(self._content.pieces)

    @_Part
    def vocabulary(self) -> frozenset[str]:
        return frozenset(self._content.words)

    @_Part
    def tokens(self) -> frozenset[str]:
        return self.vocabulary.union(self._content.pieces)

    @property
    def names(self) -> frozenset[str]:
        return self._content.names

    @property
    def things(self) -> frozenset[str]:
        return self._content.things

    @_Part
    def roles(self) -> frozenset[str]:
        return self.vocabulary & KIN_AND_ROLES

    @_Part
    def people(self) -> tuple[str, ...]:
        known = self.roles | self._content.persons
        return tuple(dict.fromkeys(word for word in self.words if word in known))

    @_Part
    def persons(self) -> frozenset[str]:
        return frozenset(word for word in self.vocabulary if word[0] == "@")

    @_Part
    def asking(self) -> frozenset[str]:
        return frozenset(word for word in self.vocabulary if word[0] == "?")

    @_Part
    def personal(self) -> bool:
        count = len(self.words)
        return (
            not self.asking
            and not self.folded.rstrip().endswith("?")
            and "@2" not in self.persons
            and count <= STATEMENT_WORDS
            and ("@1" in self.persons or bool(self.roles) or (bool(self.people) and count <= NAMED_STATEMENT_WORDS))
        )


@lru_cache(maxsize=REMEMBERED_TEXTS)
def statement(text: str) -> Statement:
    """What a text states, remembered: the same neighbours are compared again and again."""
    return Statement(text)


def _content(folded: str, text: str) -> _Content:
    written = text if text.isascii() else unicodedata.normalize("NFKC", text)
    latin_names = {fold(name).removesuffix("'s") for name in _LATIN_NAME.findall(written)}
    asks = "?" in text
    pieces: list[str] = []
    words: list[str] = []
    names: set[str] = set()
    things: set[str] = set()
    persons: set[str] = set()
    for piece, own, han, empty, tag, noun, plain in filter(None, map(_PIECES.__getitem__, rjieba.tag(_apart(folded)))):
        word, first = own, not pieces
        pieces.append(piece)
        if plain and (han or piece not in latin_names):
            if empty:
                continue
        elif piece in PERSONS:
            word = PERSONS[piece]
        elif word in ASKING and (first or asks or han):  # in English also what, who, which relate
            word = ASKING[word]
        elif empty:
            continue
        elif tag.startswith(_NAME_TAGS) if han else piece in latin_names and not (first and piece in _NEVER_NAMES):
            names.add(word)
            if not han or tag.startswith("nr"):
                persons.add(word)
        words.append(word)
        if noun or word.isascii():
            things.add(word)
    return _Content(tuple(pieces), tuple(words), frozenset(names), frozenset(things), frozenset(persons))


def _apart(folded: str) -> str:
    """Kin and roles are cut out first, whatever stands around."""
    if folded.isascii():
        return folded
    return _ROLE.sub(r" \1 ", _MY_PARENT.sub(r"我 \1\1 ", _LIKES_TO.sub("喜欢 ", folded)))


class _Piece(NamedTuple):
    """A piece with its tag: its word is spelled as the first of its synonyms.

    `han` says whether it is Chinese, `empty` whether it carries no fact, `plain` whether no text makes anything else of
    it, unless it is written like a name there."""

    piece: str
    word: str
    han: bool
    empty: bool
    tag: str
    noun: bool
    plain: bool


class _Pieces(dict[tuple[str, str], _Piece | None]):
    """What is known of pieces by themselves, remembered while there is room; None for those without letter or digit."""

    __slots__ = ()

    def __missing__(self, cut: tuple[str, str]) -> _Piece | None:
        found = _piece(cut[0].strip(), cut[1])
        if comes_again(cut[0]) and len(self) < REMEMBERED_PIECES:
            self[cut] = found
        return found


_PIECES = _Pieces()


def _piece(piece: str, tag: str) -> _Piece | None:
    if not any(map(str.isalnum, piece)):
        return None
    han = _HAN.search(piece) is not None
    word = stem(piece) if not han and piece.isalpha() else piece
    word = STANDS_FOR.get(word, word)
    empty = piece in FUNCTION or word in FUNCTION
    named = han and tag.startswith(_NAME_TAGS)
    plain = piece not in PERSONS and word not in ASKING and (empty or not named)
    return _Piece(piece, word, han, empty, tag, tag.startswith("n") and tag != "ns", plain)


def _measured(found: re.Match[str]) -> str:
    return f"{found[1]} {UNITS.get(found[2], found[2])} "


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
