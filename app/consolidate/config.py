"""How much consolidation does in one run, what it works with, and whom it asks."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Self, TypeVar

from pydantic import BaseModel, Field, model_validator

from app import telemetry, work_metrics
from app.database import Database
from app.errand import Errand
from app.errors import LlmUnavailable, LlmUnusable
from app.llm import LanguageModel
from app.remember import Rememberer

Shape = TypeVar("Shape", bound=BaseModel)


class ConsolidateConfig(BaseModel, extra="forbid"):
    """How much a run of consolidation may do, and what it summarises."""

    most_pairs: int = Field(1000, ge=1, description="Most pairs of one user that a run of dedup looks at.")
    most_changed: int = Field(500, ge=1, description="Most changed memories of one user that a run judges again.")
    most_questions: int = Field(200, ge=0, description="Most questions of one run to the language model.")
    summary_age_days: float = Field(90, ge=0, description="Age from which memories are summarised.")
    summary_similarity: float = Field(
        0.55, ge=0, le=1, description="Calibrated similarity of two memories from which one summary may tell both."
    )
    summary_least: int = Field(4, ge=2, le=100, description="Fewest memories of which a summary is made.")
    summary_most: int = Field(20, ge=2, le=100, description="Most memories of which a summary is made.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.summary_most < self.summary_least:
            raise ValueError("summary_most must not be below summary_least")
        return self


@dataclass(frozen=True, slots=True)
class Tools:
    """What the jobs work with. `rememberer` loads the embedding model: called only where there is something to do."""

    database: Database
    config: ConsolidateConfig
    rememberer: Callable[[], Awaitable[Rememberer]]
    model: LanguageModel | None = None


@dataclass(slots=True)
class Asking:
    """The questions of one run to a language model: so many, and none after it failed; rules judge what is left.

    Invariant: what was not asked is counted, and its subject is looked at again when there is a model.
    """

    model: LanguageModel | None
    left: int
    errand: Errand

    @property
    def is_on(self) -> bool:
        return self.model is not None

    def name(self, job: str) -> str:
        """The name of a job's marks: what only rules have judged is still to be judged by a model."""
        return f"{job}+llm" if self.is_on else job

    def take(self, questions: int = 1) -> bool:
        """Whether so many questions more may be put; from the first refusal on the rules are alone."""
        if self.model is None:
            return False
        if self.left < questions:
            self.give_up("questions_used_up")
            return False
        self.left -= questions
        return True

    def give_up(self, reason: str) -> None:
        """Leave the rest of this run to the rules, and say so."""
        self.model = None
        self.errand.counts[reason] += 1
        work_metrics.CONSOLIDATION_DEGRADED.labels(reason).inc()
        telemetry.log().warning("consolidation_degraded", run_id=str(self.errand.run_id), reason=reason)

    async def ask(
        self, purpose: Literal["judge", "summarise"], instructions: str, content: str, shape: type[Shape]
    ) -> Shape | None:
        """The model's answer; None: there is none, and that was counted. An unusable one costs only this question."""
        model = self.model
        if model is None or not self.take():
            return None
        try:
            return await model.ask(purpose, instructions, content, shape)
        except LlmUnavailable:
            self.give_up("llm_unavailable")
        except LlmUnusable:
            self.errand.counts["llm_unusable"] += 1
            work_metrics.CONSOLIDATION_DEGRADED.labels("llm_unusable").inc()
        return None
