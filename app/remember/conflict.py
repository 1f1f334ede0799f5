"""Does a new statement overrule an old one? Rules that read: update words over a matching statement, or the opposite.

Invariant: pure, and precise before complete. What is merely added (also, 还, another) retires nothing; the old
statement is of the same person and attribute, and the new one says outright that something changed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from app.extract import asks
from app.remember.cues import CUES, Kind, rows
from app.remember.endings import employed, names_another, not_since_when, plain
from app.remember.statement import REMEMBERED_TEXTS, Statement, statement
from app.remember.twins import leftover, missing
from app.remember.wording import NEGATION, PREFERENCES, STANDS_FOR, STATES, Either

Reason = Literal["update_words", "opposite"]
MOST_WORDS: Final = 24
"""Of a statement that may overrule or be overruled: longer ones say several things."""
MOST_VALUE_WORDS: Final = 4
"""That the old statement has beside what the new one repeats: its value."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a text says to have changed: what stands before the update words, the old value if they name it, and the
    new one behind them."""

    kind: Kind
    topic: Statement
    named: Statement
    value: Statement


ADDED: Final = Either(
    r"也(?<!再也)|还(?!是|没)|又|另外|同时|兼|除了|以及|而且|并且|第二|另一|新增|多了|加了",
    r"\b(?:also|too|as well|in addition|besides|another|second|plus|both|additionally)\b",
)
DOUBT: Final = Either(
    "？|吗|如果|要是|可能|也许|打算|计划|准备|考虑|想(?!起)|希望|应该|好像|据说|听说|差点|要不要|能不能|会不会|是否",
    r"\?",
    r"\b(?:if|might|may|maybe|perhaps|consider\w*|plan\w*|want\w* to|hop\w+"
    r"|should|could|would|whether|almost|think\w*)\b",
)
"""What is asked, wished or guessed has not changed anything."""
_RESIDENCE = re.compile(
    r"住(?!院|宿费)|家在|定居|搬[到去来]|移居|\bliv(?:e|es|ing) (?:in|at|near)\b|\bmoved to\b|\bbased in\b|\bresid"
)
_NO_HOME = re.compile(
    r"工位|办公|部门|小组|团队|楼层|座位|酒店|\b(?:desk|office|team|department|floor|hotel|another role)\b"
)
_JOB = re.compile(
    r"工作|上班|跳槽|入职|任职|就职|供职|单位|公司"
    r"|\bworks? (?:at|for|in|as)\b|\bemployed\b|\bjob\b|\bworking (?:at|for)\b"
)
_ROLE_AT = re.compile(r"在[^，。,;]{2,12}(?:做|当|担任)")
_NAME = re.compile(r"名称|名字|叫|名为|品牌|\bnamed?\b|\bcalled\b")
_TIME = re.compile(
    r"周[一二三四五六日天末]|星期|礼拜|\d\s?[点时月号日:：]|[一二三四五六七八九十][点月号日]"
    r"|上午|下午|晚上|早上|中午|今天|明天|后天|下周|本周|月底|年底"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b\d{1,2}(?::\d\d)?\s?(?:am|pm|o'clock)\b|\bnoon\b|\bmidnight\b"
    r"|\b(?:january|february|march|april|june|july|august|september|october|november|december)\b"
    r"|\b(?:today|tomorrow|morning|afternoon|evening|next week)\b"
)
_VERSION = re.compile(r"\bv?\d+(?:\.\d+)+\b")
_AGAINST = sorted(
    PREFERENCES.DISLIKING | {word for word, first in STANDS_FOR.items() if first in PREFERENCES.DISLIKING}
)
_DISLIKING = Either(
    *(word for word in _AGAINST if not word.isascii()),
    r"\b(?:" + "|".join(re.sub("e$", "(?:e|ing)", word) for word in _AGAINST if word.isascii()) + ")",
)
_STATE_WORDS = sorted(word for row in STATES for side in row for word in side)
_STATES = Either(
    *(word for word in _STATE_WORDS if not word.isascii()),
    r"\b(?:"
    + "|".join(re.sub("i$", "(?:y|i)", word) for word in _STATE_WORDS if word.isascii())
    + r")(?:e|d|s|ed|es|ing|al)?\b",
)
# Whether there is any, not where: without what may stand in front of it, and without names.
_BARE_CUES = [replace(cue, english=re.sub(r"^[(][?]:(?:[a-z]+ [|]?)+[)][?*]", "", cue.english)) for cue in CUES]
_ANY_CUE = Either(*(re.sub(r"[(][?]P<[a-z_]+>", "(?:", row) for row in rows(_BARE_CUES)))
_PIECE = re.compile("[\u3400-\u9fff]|[a-z0-9']+")
_SAYING_WHEN: Final = frozenset(
    ["got", "get", "just", "last", "week", "month", "year", "yesterday", "刚", "刚刚", "昨天", "去年", "上周", "上个月"]
)
LEAST_SHARED: Final = 0.3
"""Of the characters (Chinese) or words of the shorter of two opposites."""
_AT_A_PLACE = re.compile(r"\s*(?:在|(?:in|at|with)\b)")
_MERELY = re.compile(
    r"[不没][在是]|没有?|\b(?:is|are|am|was|were|be|have|has|had|own)\b"
    r"|\b(?:is|are|am|was|were)n't|\bno\b|n't (?:have|own)\b"
)
"""Being, being somewhere and having: who has no dog may like dogs."""
_POINTS = re.compile(r"\b(?:it|that|this|them|those|these)\b|[它这那]")
_HAVING: Final = frozenset(["own"])
_HOW_MUCH: Final = frozenset(
    ["点", "有点", "一点", "严重", "轻微", "轻度", "重度", "高度", "从小", "天生", "一直", "经常", "偶尔", "有时"]
)
_ENDS: Final = frozenset(["ended", "negated", "left", "left_home", "jobless"])
_TAIL = re.compile(r"\bany ?more\b|了$|\bnow$|\binstead\b")


def cued(text: str) -> bool:
    """Whether a text says that something changed: only then is it worth looking far for what it overrules."""
    return _change(text) is not None and len(statement(text).words) <= MOST_WORDS


def denies(text: str) -> bool:
    """Whether a text denies something or dislikes it: the opposite may stand far from it."""
    if not _may_deny(text):
        return False
    said = statement(text)
    denied = said.negations > 0 or not PREFERENCES.turn(said.words, 0) or _STATES.search(said.folded) is not None
    return len(said.words) <= MOST_WORDS and denied


def overrules(new: str, old: str) -> Reason | None:
    """Why the new statement overrules the old one; None: it does not, or nobody can tell by rules."""
    # First looks that most pairs do not pass: to cut a text into words costs as much as all else of a write.
    change = _change(new)
    if change is None and not (_may_deny(new) or _may_deny(old)):
        return None
    a, b = statement(new), plain(old) if change is not None and change.kind in _ENDS else statement(old)
    opposing = _may_oppose(a, b) and (change is not None or _resemble(new, old))
    changing = change is not None and _may_change(change, b)
    if not (opposing or changing) or _doubtful(old):
        return None
    if max(len(a.words), len(b.words)) > MOST_WORDS or not _one_subject(a, b) or asks(new) or asks(old):
        return None
    if opposing and _opposite(a, b):
        return "opposite"
    return "update_words" if change is not None and changing and _MATCHES[change.kind](a, b, change) else None


@lru_cache(maxsize=REMEMBERED_TEXTS)
def _change(text: str) -> Change | None:
    """What a text says to have changed, unless it adds, doubts or asks."""
    folded = statement(text).folded
    said = folded.rstrip(" .。!！")
    if not _ANY_CUE.search(said) or ADDED.search(folded) or DOUBT.search(folded):
        return None
    cue, match = next((cue, match) for cue in CUES if (match := cue.words.search(said)))
    before, behind = said[: match.start()], _TAIL.sub("", said[match.end() :])
    if cue.kind in _ENDS:
        before, behind = not_since_when(before, behind)
    return Change(
        cue.kind,
        statement(f"{before} {_named(match, 'what')}"),
        statement(not_since_when("", _named(match, "old"))[1]),
        statement(behind),
    )


def _named(match: re.Match[str], name: str) -> str:
    """What a group of a cue found, in either language."""
    found = match.groupdict()
    return found.get(name) or found.get(f"{name}_zh") or found.get(f"{name}_en") or ""


@lru_cache(maxsize=REMEMBERED_TEXTS)
def _may_deny(text: str) -> bool:
    folded = statement(text).folded
    return bool(NEGATION.search(folded) or _DISLIKING.search(folded) or _STATES.search(folded))


@lru_cache(maxsize=REMEMBERED_TEXTS)
def _doubtful(text: str) -> bool:
    return DOUBT.search(statement(text).folded) is not None


@lru_cache(maxsize=REMEMBERED_TEXTS)
def _pieces(text: str) -> frozenset[str]:
    return frozenset(_PIECE.findall(statement(text).folded))


def _resemble(one: str, other: str) -> bool:
    """Whether two texts share so much that one may be the opposite of the other, which has no other thing in it."""
    a, b = _pieces(one), _pieces(other)
    return len(a & b) >= LEAST_SHARED * min(len(a), len(b))


def same_attribute(new: str, old: str) -> bool:
    """Whether two statements are of one person and one attribute, so that a model may be asked if they contradict."""
    a, b = statement(new), statement(old)
    if max(len(a.words), len(b.words)) > MOST_WORDS or a.asking or b.asking or ADDED.search(a.folded):
        return False
    if not _one_subject(a, b) or DOUBT.search(a.folded):
        return False
    if any(frame.search(a.folded) and frame.search(b.folded) for frame in (_RESIDENCE, _JOB)):
        return True
    shared = [word for word in PREFERENCES.without(_things(a, a)) if word in b.vocabulary]
    apart = max(len(leftover(a, b)), len(leftover(b, a)))
    return bool(shared) and apart <= MOST_VALUE_WORDS


def _one_subject(a: Statement, b: Statement) -> bool:
    """Whether both are about the same person or thing: that of which a sentence without one speaks is the speaker."""
    one, other = _head(a), _head(b)
    return a.roles == b.roles and (one == other or _is_thing(one, b) or _is_thing(other, a))


def _is_thing(head: str, other: Statement) -> bool:
    """Whether what begins one text, and so may be a name, is no name in the other, which begins with none."""
    return bool(head) and not _head(other) and head in other.vocabulary and head not in other.people


def _head(a: Statement) -> str:
    """Who a statement begins with: a name, or nobody in particular."""
    first = next((word for word in PREFERENCES.without(a.words) if word[0] != "?"), "")
    return first if first in a.people and "@1" not in a.persons else ""


def _may_oppose(a: Statement, b: Statement) -> bool:
    """Whether nothing that is seen before they are cut keeps one from being the opposite of the other."""
    return a.numbers == b.numbers and a.qualifiers == b.qualifiers and 0 in (a.negations, b.negations)


def _may_change(change: Change, b: Statement) -> bool:
    """The same for a change: but for where somebody is now, its topic has no number that the old statement lacks."""
    return not b.negations and (change.kind == "now" or _stated(change.topic, b, words=False))


def _opposite(a: Statement, b: Statement) -> bool:
    """Whether one says exactly what the other denies, likes what the other dislikes, or has it in the other state."""
    if a.asking or b.asking or a.persons != b.persons:
        return False
    if not (a.negations or b.negations) and _other_state(a, b):
        return True
    if PREFERENCES.turn(a.words, a.negations) == PREFERENCES.turn(b.words, b.negations):
        return False
    if _prefers(a) != _prefers(b) and _MERELY.search((b if _prefers(a) else a).folded):
        return False
    shared = [word for word in PREFERENCES.without(a.words) if word in b.vocabulary and word[0] not in "@?"]
    apart = [
        word
        for one, other in ((a, b), (b, a))
        for word in PREFERENCES.without(missing(one, other))
        if not (word[0] in "不没" and word[1:] in other.joined)
    ]
    return bool(shared) and not apart


def _prefers(a: Statement) -> bool:
    return any(word in PREFERENCES.LIKING or word in PREFERENCES.DISLIKING for word in a.words)


def _other_state(a: Statement, b: Statement) -> bool:
    """Whether all that two statements have apart is a state, of which a thing has one at a time."""
    new, old = set(a.words) - set(b.words), set(b.words) - set(a.words)
    for left, right in STATES:
        for one, other in ((left, right), (right, left)):
            if new & one and old & other:
                return not (old - other) and len(new - one - _SAYING_WHEN) == 0 and len(b.words) > len(old)
    return False


def _replaced(a: Statement, b: Statement, change: Change) -> bool:
    topic, named, value = change.topic, change.named, change.value
    if named.words:
        # Where it is not said of what it was the value, the old statement says nothing else of it.
        most = MOST_VALUE_WORDS if _things(topic, a) else 0
        return _stated(named, b) and _stated(topic, b) and len(leftover(b, a)) <= most
    rest = leftover(b, topic)
    # Of a mere name many things may be said, and only the barest can be its value.
    nameless = _things(topic, a) or (topic.words and len(missing(b, topic)) <= 1)
    if not nameless or not _stated(topic, b) or len(rest) > MOST_VALUE_WORDS or not (rest or b.numbers):
        return False
    return _same_class(value, rest, b, topic)


def _stated(part: Statement, old: Statement, *, words: bool = True) -> bool:
    """Whether the old statement has all numbers and codes of a part of the new one, and all its words."""
    if not (set(part.numbers) <= set(old.numbers) and part.codes <= old.codes):
        return False
    return not words or not missing(part, old)


def _things(topic: Statement, a: Statement) -> list[str]:
    """Words of a topic that name no person: the attribute, or the thing that changed."""
    return [word for word in topic.words if word[0] not in "@?" and word not in a.people and word not in a.roles]


def _same_class(value: Statement, rest: Sequence[str], old: Statement, topic: Statement) -> bool:
    """Whether new and old value are of one class: a time for a time, a version for a version, a number for a number."""
    for pattern in (_TIME, _VERSION):
        if bool(pattern.search(value.folded)) != bool(pattern.search(old.folded)):
            return False
    if value.names and rest and not _TIME.search(value.folded) and old.people and not value.people:
        return False
    numbers = [number for number in old.numbers if number not in topic.numbers]
    codes = "".join(value.codes | set(value.numbers))
    if value.codes != old.codes - topic.codes and [word for word in _things(value, value) if word not in codes]:
        return False  # a code beside the value names what it is the value of
    return bool(value.numbers) == bool(numbers) and bool(value.codes) == bool(old.codes - topic.codes)


def _moved(a: Statement, b: Statement, change: Change) -> bool:
    topic, value = change.topic, change.value
    if _things(topic, a):  # the meeting moved to …
        return _replaced(a, b, change)
    homes = _RESIDENCE.search(b.folded) and not _NO_HOME.search(f"{a.folded} {b.folded}")
    return bool(homes) and _stated(topic, b, words=False) and _another(value, b)


def _renamed(_: Statement, b: Statement, change: Change) -> bool:
    topic = change.topic
    return bool(_NAME.search(b.folded)) and bool(topic.words) and _stated(topic, b) and _another(change.value, b)


def _now(a: Statement, b: Statement, change: Change) -> bool:
    both = [frame for frame in (_RESIDENCE, _JOB) if frame.search(a.folded) and frame.search(b.folded)]
    return len(both) == 1 and _another(change.value, b)


def _is_now(a: Statement, b: Statement, change: Change) -> bool:
    """What of whom: of a mere thing that is now something else, many things may have been said."""
    return sum(word[0] not in "@?" for word in change.topic.words) > 1 and _replaced(a, b, change)


def _left(_: Statement, b: Statement, change: Change) -> bool:
    job = _JOB.search(b.folded) or _ROLE_AT.search(b.folded)
    named = change.named.folded.strip(" 了")
    return bool(job) and bool(change.named.words) and (named in b.folded or not leftover(change.named, b))


def _left_home(_: Statement, b: Statement, change: Change) -> bool:
    homes = _RESIDENCE.search(b.folded) and not _NO_HOME.search(b.folded)
    return bool(homes) and bool(change.named.words) and not leftover(change.named, b)


def _jobless(_: Statement, b: Statement, change: Change) -> bool:
    """Whoever left a job without naming it has no other thing in the sentence, and an employer in the old one."""
    return not (change.value.words or _things(change.topic, change.topic)) and employed(b)


def _another(value: Statement, old: Statement) -> bool:
    """Whether there is a new value and the old statement holds another."""
    return bool(leftover(value, old)) and 0 < len(leftover(old, value)) <= MOST_VALUE_WORDS


def _ended(a: Statement, b: Statement, change: Change) -> bool:
    said = statement(f"{change.topic.folded} {change.value.folded}")
    about = [word for word in PREFERENCES.without(said.words) if word[0] not in "@?"]
    # Also how it is said counts: 不能用花呗了 ends no other thing about 花呗.
    unsaid = [word for word in PREFERENCES.without(missing(said, b)) if word not in _HAVING]
    rest = leftover(b, a)
    if _POINTS.search(change.value.folded):
        return False
    if not about or unsaid or not _stated(said, b, words=False) or len(rest) > MOST_VALUE_WORDS // 2:
        return False
    if names_another(about, rest, b):
        return False
    # Who is no longer in a place may have studied there.
    somewhere = _AT_A_PLACE.match(change.value.folded) is not None and len(change.value.words) == 1
    return not somewhere or any(frame.search(b.folded) for frame in (_RESIDENCE, _JOB))


def _negated(a: Statement, b: Statement, change: Change) -> bool:
    """Of a mere 不 … 了 the old statement has nothing beside it but a time, or how much."""
    return _ended(a, b, change) and all(_TIME.search(word) or word in _HOW_MUCH for word in leftover(b, a))


_MATCHES: Final = {
    "replaced": _replaced, "moved": _moved, "renamed": _renamed, "now": _now, "is_now": _is_now, "left": _left,
    "left_home": _left_home, "jobless": _jobless, "ended": _ended, "negated": _negated,
}  # fmt: skip
