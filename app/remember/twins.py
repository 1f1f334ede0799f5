"""Does an old text say what a new one says? Similarity proposes, this verdict decides: pure, in doubt it never merges.

What the two texts share is taken away; what is left over decides. A word left on both sides is another value, however
close the vectors are. Numbers, codes, negation, people and opposites must agree.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from app.remember.statement import Statement, statement
from app.remember.wording import FRAME, LONE_CHARACTERS, OPPOSITES, STANDS_FOR

Verdict = Literal["same", "unsure", "different"]
JOINING: Final = frozenset(("而且", "并且", "以及", "和", "、", "另外", "此外", "and", "also"))
MOST_BESIDES: Final = 2
"""Words that the old statement about a person may have beside what the new one says."""


def compare(new: str, old: str) -> Verdict:
    """How a new text stands to an old one that is close as a vector.

    `same`: the old one says it all, so that nothing is lost if only that is kept. `different`: they disagree in
    something that is never mere wording (a number, a code, a negation, an opposite, a person). `unsure`: no such thing,
    but more than wording differs; whoever can read may decide. A statement about a person may be worded freely; of any
    other text (a question, prose) each word counts, and their order.
    """
    a, b = statement(new), statement(old)
    if _disagree(a, b):
        return "different"
    added, besides = _left(a, b), _left(b, a)
    if added and besides:
        return "different" if _names_differ(a, b, added, besides) else "unsure"
    if a.qualifiers != b.qualifiers and (added or besides or _limits(a) != _limits(b)):
        return "unsure"
    if a.personal and b.personal:
        # One word more may be a way of saying it, unless it names a thing.
        said = not added or (len(added) == 1 and added[0][0] not in a.things)
        one_person = a.persons == b.persons or not (added or besides)
        return "same" if said and len(besides) <= MOST_BESIDES and one_person else "unsure"
    alike = a.asking == b.asking and a.persons == b.persons and len(a.words) == len(b.words)
    return "same" if alike and not (added or besides or _moved(a.words, b.words)) else "unsure"


def _limits(a: Statement) -> list[str]:
    """Qualifiers that limit; what merely joins adds nothing where nothing is added."""
    return [word for word in a.qualifiers if word not in JOINING]


def _disagree(a: Statement, b: Statement) -> bool:
    """Whether the two differ in something that is never mere wording; most do so before they are cut into words."""
    if a.numbers != b.numbers or a.codes != b.codes or a.negations != b.negations or a.endings != b.endings:
        return True
    personal = a.personal and b.personal
    return (
        opposed(a, b)
        or (a.roles != b.roles if personal else not (a.roles <= b.roles or b.roles <= a.roles))
        or (personal and not _in_order(a.people, b.people))
    )


def opposed(a: Statement, b: Statement) -> bool:
    """Whether one has a word and the other its opposite."""
    only_a, only_b = a.tokens - b.tokens, b.tokens - a.tokens
    return any((only_a & left and only_b & right) or (only_a & right and only_b & left) for left, right in OPPOSITES)


def leftover(of: Statement, besides: Statement) -> list[str]:
    """Content words that only the first text has, without those that only say how; numbers are compared apart."""
    return [rest for _, rest in _left(of, besides)]


def missing(of: Statement, besides: Statement) -> list[str]:
    """Content words that only the first text has, or what is left of them when a part of them stands in the other."""
    return [rest for _, rest in _missing(of, besides)]


def _left(of: Statement, besides: Statement) -> list[tuple[str, str]]:
    return [
        (word, rest)
        for word, rest in _missing(of, besides)
        if word not in FRAME and STANDS_FOR.get(rest, rest) not in FRAME
    ]


def _missing(of: Statement, besides: Statement) -> list[tuple[str, str]]:
    left: list[tuple[str, str]] = []
    for word in dict.fromkeys(of.words):
        if word in besides.vocabulary or word[0] in "@?" or any(map(str.isdigit, word)):
            continue
        rest = word if word.isascii() else "".join(filter(_means, _without(word, besides.joined)))
        if rest:
            left.append((word, rest))
    return left


def _means(character: str) -> bool:
    return character not in LONE_CHARACTERS and character not in "零〇一二两三四五六七八九十百千万亿半"


def _without(word: str, text: str) -> str:
    """A word without the runs of two and more characters that stand in the other text: words are cut as it comes."""
    if word in text:
        return ""
    if len(word) < 3:
        return word
    rest, at = "", 0
    while at < len(word):
        length = next((n for n in range(len(word) - at, 1, -1) if word[at : at + n] in text), 0)
        if not length:
            rest += word[at]
        at += length or 1
    return rest


def _names_differ(
    a: Statement, b: Statement, added: Sequence[tuple[str, str]], besides: Sequence[tuple[str, str]]
) -> bool:
    return any(word in a.names for word, _ in added) and any(word in b.names for word, _ in besides)


def _in_order(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether the people that both have come in the same order: who did it to whom."""
    both = set(a) & set(b)
    return [person for person in a if person in both] == [person for person in b if person in both]


def _moved(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether words that both have equally often stand in another order."""
    often_a, often_b = Counter(a), Counter(b)
    places: dict[str, list[int]] = {}
    for place, word in enumerate(b):
        places.setdefault(word, []).append(place)
    common = [places[word].pop(0) for word in a if often_a[word] == often_b[word]]
    ascending: list[int] = []
    for place in common:
        at = bisect_left(ascending, place)
        ascending[at : at + 1] = [place]
    return len(ascending) < len(common)
