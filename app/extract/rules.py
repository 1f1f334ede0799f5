"""Facts of a conversation by rules, without a model: what the user stated, wanted kept, or what changed; pure.

Invariant: a fact is what was said, sentence by sentence, in the speaker's words and person; only days are spelled out
beside their words, and a clause that lost its subject gets it back. Nobody's question or supposition becomes a fact.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo

from app.extract.conversation import Extraction, Fact, Message, Skip, Skipped, Trigger
from app.extract.customers import AMOUNT, ASKED_FOR, CUSTOMERS, NOTHING_DONE, PUT_OFF
from app.extract.entities import NEW, entities
from app.extract.importance import importance_of
from app.extract.sentences import (
    Subject,
    asked_to_keep,
    clauses,
    is_command,
    points_back,
    sentences,
    shown_folded,
    stated,
    subject,
)  # fmt: skip
from app.extract.served import without_served
from app.extract.slots import DATES, slot
from app.extract.triggers import (
    ASKED_NOT_TO,
    ATTRIBUTE,
    DONE_FOR_THE_USER,
    EVENTS,
    I_ZH,
    LASTING,
    RELATIVES,
    SECRET,
    TRIGGERS,
)
from app.extract.triviality import trivial
from app.extract.when import dated, days_of, names_days
from app.kinds import DEFAULT_KIND
from app.language import fold

SPEAKER = {True: "助手：", False: "Assistant: "}
"""Before what an assistant says to have done, by whether it is Chinese: else its 'I' would be taken for the user's."""

_ASKED_NOT_TO, _SECRET, _EVENTS = ASKED_NOT_TO.pattern, SECRET.pattern, EVENTS.pattern
_LASTING, _ATTRIBUTE, _DONE = LASTING.pattern, ATTRIBUTE.pattern, DONE_FOR_THE_USER.pattern
_AMOUNT, _PUT_OFF, _NOTHING_DONE = AMOUNT.pattern, PUT_OFF.pattern, NOTHING_DONE.pattern
_MINE = re.compile(rf"{I_ZH}(?:的|家)?{RELATIVES.zh}|\b(?:my|our) (?:\w+ )?{RELATIVES.en}\b")
_SHE_IS = re.compile(r"^s?he's\b")
_THIRD = re.compile(r"^(?:他|她)(?!们)|^(?:he|she)\b")
_ROWS = [(row, row.words.pattern) for row in (*TRIGGERS, *CUSTOMERS)]
_HAN = re.compile(r"[\u3400-\u9fff]")
_MATERIAL = re.compile(r"[:：“「『\"]")
_NAMES = re.compile(r"我|是|为|叫|[:：]|\b(?:i|my|is|are|was)\b")
"""What a sentence says of a code or number, if it is more than a search for it."""
_OWN = re.compile(r"我|\b(?:i|my|our)\b")
_NOTHING_SAID = re.compile(
    r"^[^，,]{0,6}(?:喜欢|喜爱|热爱|讨厌|反感|习惯|不爱)[。.!！~了啊呀的]*$|\b(?:like|love|prefer|enjoy|hate|eat"
    r"|drink)[.!\s]*$"
)
_ASKED_FOR = ASKED_FOR.pattern
_BARE = re.compile(
    r"(?:(?:它|号码|就)?是|it['’]s|it is|that['’]s|sure|here|[,，:：\s])*"
    r"(?P<code>(?=[A-Za-z#_/-]*\d)[A-Za-z0-9#_/-]{4,24}|\d{3,20})(?=$|[。.!，,\s])(?P<more>.{0,40})",
    re.IGNORECASE,
)
"""A number or code and little else: the answer to a question for it."""
_THING = re.compile(r"(?:这|那|它|it\b|this\b|that\b|these\b|those\b)")
_LABELLED = re.compile(CUSTOMERS[-1].words.pattern.pattern + r"|\b(?:plate|code|number)\b.{0,12}\d")
_JOINING = re.compile(r"^(?:and|but|so)\s+|^(?:而且|并且|但是?|所以)", re.IGNORECASE)
_NO_SUBJECT = re.compile(
    r"^(?:现在|目前|今年|也|还|都|很|最|特别|非常|比较|不|没|一直|平时|从来)*(?:住|叫|是|在|喜欢|讨厌|爱|怕|吃|喝|只"
    r"|会|能|有|养|对|来自"
    r"|从事|毕业|工作|生日|老家|邮箱|电话|手机|职业|\d{1,3}岁|打算|计划|准备|想|要)"
)


@dataclass(frozen=True, slots=True)
class Found:
    """A statement and why it is worth keeping; `order`: its speaker wants it kept or obeyed."""

    text: str
    kind: str
    trigger: Trigger
    key: str | None = None
    order: bool = False


def facts_by_rules(messages: Sequence[Message], zone: tzinfo) -> Extraction:
    """The facts that TRIGGERS and SLOTS find; days count from each message's time in `zone`."""
    reading = _Reading(zone)
    for index, message in enumerate(messages):
        reading.read(index, message)
    return Extraction(tuple(reading.facts), tuple(reading.skipped))


@dataclass(frozen=True, slots=True)
class _Statement:
    """What was stated, where, and how many facts there were before it."""

    index: int
    message: Message
    text: str
    facts_before: int


@dataclass(slots=True)
class _Reading:
    """How far a conversation was read: its facts, and what later sentences may refer to."""

    zone: tzinfo
    facts: list[Fact] = field(default_factory=list)
    skipped: dict[Skipped, None] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    last: _Statement | None = None
    spoken: int = -1
    asked: str = ""
    """What the assistant asked for by its name just now."""
    before: dict[int, int] = field(default_factory=dict)
    """For each message of a user, the number of the one before it."""

    def read(self, index: int, message: Message) -> None:
        said = without_served(message.content)
        reason: Skip | None = None
        if message.role in {"system", "tool"}:
            reason = "system_text" if message.role == "system" else "tool_text"
        elif not said.strip():
            reason = "served_memory" if message.content.strip() else "trivial"
        elif message.role == "assistant":
            reason = self._read_assistant(index, message, said)
        elif _ASKED_NOT_TO.search(fold(said)):
            reason = "asked_not_to"
        elif trivial(said):
            reason = "trivial"
        else:
            self._read_user(index, message, said)
        if reason is not None:
            self._skip(index, reason)
        self.seen.update(entities(said, NEW))

    def _skip(self, index: int, reason: Skip) -> None:
        self.skipped[Skipped(index, reason)] = None

    def _read_user(self, index: int, message: Message, said: str) -> None:
        self.before[index] = self.spoken
        self.spoken = index
        facts, skips = len(self.facts), len(self.skipped)
        label, self.asked = self.asked, ""
        meant, requested, items = self.last, False, 0
        for sentence in sentences(said):
            asked = asked_to_keep(sentence)
            if asked is not None and not asked.rest:
                meant, requested = self.last, True
                continue
            if trivial(sentence):
                continue
            if label and (bare := _BARE.fullmatch(sentence.strip())) is not None:
                joint = "：" if _HAN.search(label) else ": "
                self._keep(index, message, Found(f"{label}{joint}{bare['code']}{bare['more']}", DEFAULT_KIND, "entity"))
                label = ""
                continue
            text, reason = (sentence, None) if requested else _statement(sentence)
            text = text if asked is None else asked.rest
            if asked is None and reason is not None:
                self._skip(index, reason)
                if reason == "command" and _MATERIAL.search(sentence):
                    break  # what follows is what the task is about
                continue
            items += requested
            self._state(index, message, text, wanted=requested or asked is not None)
        if requested and not items and meant is not None:  # 「请记住」 alone: what was said last is meant
            self._state(meant.index, meant.message, meant.text, wanted=True)
        elif (len(self.facts), len(self.skipped)) == (facts, skips):
            self._skip(index, "nothing_new")

    def _read_assistant(self, index: int, message: Message, said: str) -> Skip | None:
        """Keep what the assistant says to have done; nothing else that it says is a fact."""
        reason: Skip | None = "not_said_by_user"
        for sentence in sentences(said):
            text, asks = stated(sentence)
            if (wanted := _ASKED_FOR.search(fold(sentence))) is not None and not _SECRET.search(fold(sentence)):
                self.asked = next(filter(None, wanted.groups()))
            folded = fold(text)
            done = asks is None and _DONE.search(folded) and not _NOTHING_DONE.search(folded.strip())
            if done and not _SECRET.search(folded):
                who = SPEAKER[bool(_HAN.search(text))]
                self._keep(index, message, Found(f"{who}{text}", "task_state", "task_state"))
                reason = None
        return reason

    def _state(self, index: int, message: Message, text: str, *, wanted: bool) -> None:
        """Keep what a statement says, together with the one before it if it only points there."""
        before, theirs = len(self.facts), False
        if points_back(text) or subject(text) == "pronoun":
            if self.last is None or (self.last.index != index and not self._meant(text, index)):
                self._keep_clauses(index, message, text)  # nobody can say who or what the rest means
                return
            joint = "。" if _HAN.search(text) else ". "
            theirs = _of_another(text, self.last.text)
            if self.last.index == index:
                before = self.last.facts_before
                self.facts[before:] = [fact for fact in self.facts[before:] if fact.key is not None]
            text = f"{self.last.text.rstrip('。.!！ ')}{joint}{text}"
        self.last = _Statement(index, message, text, before)
        found = self._found(text, message)
        if not found and theirs:
            found = [Found(text, DEFAULT_KIND, "other_person")]
        if wanted:
            found = found or [Found(text, DEFAULT_KIND, "request")]
            found = [replace(one, trigger="request", order=True) for one in found]
        for one in found:
            self._keep(index, message, one)

    def _meant(self, text: str, index: int) -> bool:
        """Whether a sentence that points back means what the user's message before it stated: one other person of whom
        both speak, or a thing whose number it gives."""
        assert self.last is not None
        if self.last.index != self.before.get(index):
            return False
        if subject(text) == "pronoun" and not _THING.match(fold(text)):
            return _of_another(text, self.last.text)
        return not _MINE.search(fold(self.last.text)) and _worth_naming(text)

    def _keep_clauses(self, index: int, message: Message, text: str) -> None:
        """Keep the clauses of the speaker that stand for themselves behind one that points back."""
        for part in clauses(text):
            if subject(part) == "user" and not points_back(part):
                for one in self._found(_JOINING.sub("", part), message):
                    self._keep(index, message, one)

    def _keep(self, index: int, message: Message, found: Found) -> None:
        told = dated(found.text, message.at, self.zone)
        fact = Fact(
            content=told.text, kind=found.kind, key=found.key, trigger=found.trigger,
            event_at=None if found.key in DATES else told.event_at,
            importance=importance_of(found.kind, found.text, requested=True if found.order else None),
            entities=entities(found.text), message_index=index, role=message.role,
        )  # fmt: skip
        same = next((n for n, f in enumerate(self.facts) if (f.message_index, f.content) == (index, told.text)), None)
        if same is None:
            self.facts.append(fact)
        elif fact.importance >= self.facts[same].importance:
            self.facts[same] = fact

    def _found(self, text: str, message: Message) -> list[Found]:
        """What is worth keeping of a statement: clause by clause where each stands for itself, else as a whole."""
        who = subject(text)
        parts = [_with_subject(_JOINING.sub("", part), who) for part in clauses(text)]
        if len(parts) > 1:
            apart = [self._worth(part, subject(part)) for part in parts]
            days = {days_of(part, message.at, self.zone) for part in parts} - {frozenset()}
            subjects = {subject(part) for part in parts if _OWN.search(fold(part))} & {"user", "other"}
            found = [one for one in apart if one is not None]
            if len(found) == len(parts) and (any(one.key for one in found) or len(days) > 1 or len(subjects) > 1):
                return found
        one = self._worth(text, who)
        return [] if one is None else [one]

    def _worth(self, text: str, who: Subject) -> Found | None:
        folded = shown_folded(text).strip()
        if who == "reported" or _SECRET.search(folded) or _PUT_OFF.search(folded):
            return None
        if who in {"other", "pronoun"}:
            return _worth_of_others(text, folded, who)
        if (key := slot(folded)) is not None:
            return Found(text, "profile", "slot", key)
        for row, pattern in _ROWS:
            if pattern.search(folded) and not _NOTHING_SAID.search(folded):
                return Found(text, row.kind, row.trigger, order=row.order)
        told_of = _ATTRIBUTE.search(folded) or _told_of(text, folded, who)
        names = _NAMES.search(folded) and not self.seen.issuperset(entities(text, NEW))
        return Found(text, DEFAULT_KIND, "entity") if told_of or names else None


def _worth_of_others(text: str, folded: str, who: Subject) -> Found | None:
    if who == "other" and any(row.order and pattern.match(folded) for row, pattern in _ROWS):
        return Found(text, "user_preference", "preference", order=True)  # 「leave it with my neighbour」
    lasting = _LASTING.search(folded) or _EVENTS.search(folded) or names_days(text)
    return Found(text, DEFAULT_KIND, "other_person") if lasting else None


def _told_of(text: str, folded: str, who: Subject) -> bool:
    """Whether a statement has two of: whose it is, its day, an event, a sum of money."""
    events, amounts = _EVENTS.search(folded) is not None, _AMOUNT.search(folded) is not None
    return sum((who == "user", names_days(text), events, amounts)) > 1


def _of_another(text: str, before: str) -> bool:
    """Whether a sentence says something lasting of him or her, and the one before names one person of the speaker's."""
    folded = fold(text)
    lasting = _LASTING.search(folded) or _SHE_IS.search(folded)
    return bool(_THIRD.search(folded) and lasting) and len(set(_MINE.findall(fold(before)))) == 1


def _worth_naming(text: str) -> bool:
    """Whether a statement names a number or code by which somebody may find the thing again."""
    return bool(_LABELLED.search(fold(text))) or bool(entities(text, NEW))


def _statement(sentence: str) -> tuple[str, Skip | None]:
    return (sentence, "command") if is_command(sentence) else stated(sentence)


def _with_subject(clause: str, who: Subject) -> str:
    """A clause that leaves out the speaker, as Chinese does after the first one, with 我 before it."""
    if who == "user" and _NO_SUBJECT.match(clause) and subject(clause) == "nobody":
        return f"我{clause}"
    return clause
