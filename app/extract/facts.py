"""extract_facts(): from a conversation to facts, by a language model where there is one, by rules always.

Invariant: a failure is an error and never "no facts"; what a user asked to keep is in the answer whatever a model says.
"""

from collections.abc import Sequence
from datetime import tzinfo
from typing import Final, Literal

from pydantic import BaseModel, Field

from app.errors import LlmUnavailable
from app.extract.conversation import Extraction, Fact, Message, Skipped
from app.extract.reading import Read, read_by_model
from app.extract.rules import facts_by_rules
from app.language import words
from app.llm import LanguageModel
from app.telemetry import EXTRACTION_DEGRADED, EXTRACTION_FACTS

SAME: Final = 0.6
"""Share of a fact's words from which another one of the same message says it, too."""

OWED: Final = frozenset({"request", "slot"})
"""Triggers of facts that a model may reword but not leave out."""


class ExtractConfig(BaseModel, extra="forbid"):
    """How conversations are read."""

    importance: Literal["rule", "model"] = Field(
        "rule", description="Who weighs a fact: the documented rule, or the language model where it gave a score."
    )
    without_llm: Literal["rules", "fail"] = Field(
        "rules",
        description="When the configured language model does not answer: the rules alone, marked degraded; or an "
        "error, so that the operation is tried again later.",
    )
    question_characters: int = Field(12_000, ge=500, description="Most characters of a conversation in one question.")


async def extract_facts(
    messages: Sequence[Message], *, zone: tzinfo, llm: LanguageModel | None = None, config: ExtractConfig | None = None
) -> Extraction:
    """The facts of a conversation, in its order; days count from each message's own time in `zone`, never from now.

    Raises LlmUnusable when the model's answers cannot be used, and LlmUnavailable if the configuration says that rules
    must not stand in for it. Holds no connection.
    """
    found = await _extract(messages, zone, llm, config or ExtractConfig())
    for reason in found.degraded:
        EXTRACTION_DEGRADED.labels(reason).inc()
    return found


async def _extract(
    messages: Sequence[Message], zone: tzinfo, llm: LanguageModel | None, config: ExtractConfig
) -> Extraction:
    by_rules = facts_by_rules(messages, zone)
    if llm is None:
        EXTRACTION_FACTS.labels("rules").inc(len(by_rules.facts))
        return by_rules
    try:
        read = await read_by_model(
            llm, messages, zone, characters=config.question_characters, own_importance=config.importance == "model"
        )
    except LlmUnavailable:
        if config.without_llm == "fail":
            raise
        EXTRACTION_FACTS.labels("rules").inc(len(by_rules.facts))
        return Extraction(by_rules.facts, by_rules.skipped, ("llm_unavailable",))
    EXTRACTION_FACTS.labels("model").inc(len(read.facts))
    EXTRACTION_FACTS.labels("rejected").inc(len(read.dropped))
    return _together(by_rules, read)


def _together(by_rules: Extraction, read: Read) -> Extraction:
    """The model's facts and those of the rules that it owes and did not give."""
    owed = [fact for fact in by_rules.facts if fact.trigger in OWED and not _given(fact, read.facts)]
    EXTRACTION_FACTS.labels("rules").inc(len(owed))
    facts = sorted([*read.facts, *owed], key=lambda fact: fact.message_index)
    sources = {fact.message_index for fact in facts}
    rejected = [Skipped(index, "rejected") for index in sorted(set(read.dropped)) if index >= 0]
    skipped = [one for one in by_rules.skipped if one.message_index not in sources]
    return Extraction(tuple(facts), tuple(dict.fromkeys([*skipped, *rejected])))


def _given(fact: Fact, others: Sequence[Fact]) -> bool:
    mine = set(words(fact.content))
    return any(
        other.message_index == fact.message_index and len(mine & set(words(other.content))) >= SAME * len(mine)
        for other in others
    )
