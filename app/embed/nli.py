"""A sentence-transformers CrossEncoder of three labels in this process: does one statement contradict another?

Invariant: both directions must say so; a model that is away or slow raises NliUnavailable within the deadline, and one
without a label that is called contradiction is refused at the start.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from pydantic import BaseModel, Field

from app.embed.batcher import Batcher, Meters
from app.embed.embedder import Precision, QueueFull
from app.errors import StartupRefused
from app.work_metrics import (
    NLI_BATCH_SIZE,
    NLI_DURATION_SECONDS,
    NLI_QUEUE_DEPTH,
    NLI_QUEUE_WAIT_SECONDS,
    NLI_REQUESTS,
)

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

    from app.embed.cross_encoder import PairModel

METERS: Final = Meters(NLI_QUEUE_DEPTH, NLI_QUEUE_WAIT_SECONDS, NLI_DURATION_SECONDS, NLI_BATCH_SIZE)
CONTRADICTION: Final = "contradiction"


class NliConfig(BaseModel, extra="forbid"):
    """Which model reads two statements, and when it is believed."""

    provider: Literal["none", "local"] = Field(
        "none", description="none, or a sentence-transformers CrossEncoder with the labels of NLI."
    )
    model: str | None = Field(None, description="Name or folder of the model.")
    revision: str | None = Field(None, description="Revision of the model at the hub.")
    least_probability: float = Field(
        0.9, gt=0.5, le=1, description="Probability of contradiction, in both directions, from which it counts."
    )
    deadline_seconds: float = Field(2.0, gt=0, description="Longest wait of a write; then rules alone judge, degraded.")
    max_tokens: int = Field(256, ge=32, description="Tokens of both statements together.")
    precision: Precision = Field(
        "auto", description="Arithmetic; auto: bfloat16 with AMX, else int8 with VNNI, else float32."
    )
    batch_size: int = Field(32, ge=1, le=512, description="Most pairs in one call of the model.")
    queue_limit: int = Field(400, ge=1, description="Pairs waiting beyond which rules alone judge, degraded.")


class NliUnavailable(Exception):
    """No answer in time; rules alone judge."""


class Nli:
    """The loaded model behind its batcher."""

    source: Final = "nli"

    def __init__(self, model: "PairModel", batch_tokens: int, contradiction: int, config: NliConfig) -> None:
        self._config, self._contradiction = config, contradiction
        self._batcher: Batcher[tuple[str, str]] = Batcher(
            model,
            batch_size=config.batch_size,
            batch_tokens=batch_tokens,
            wait_seconds=0.0,
            limit=config.queue_limit,
            meters=METERS,
        )
        self._batcher.start()

    async def close(self) -> None:
        """Refuse what waits and free the model."""
        await self._batcher.close()

    async def contradicted(self, new: str, old: Sequence[str]) -> list[bool]:
        """Of each old statement, whether the new one contradicts it; raises NliUnavailable."""
        outcome = "failed"
        try:
            async with asyncio.timeout(self._config.deadline_seconds):
                pairs = [pair for text in old for pair in ((text, new), (new, text))]
                logits = np.array([windows[0] for windows in await self._batcher.encode(pairs, "query")], np.float64)
            outcome = "ok" if np.isfinite(logits).all() else "failed"
        except (QueueFull, TimeoutError) as error:
            outcome = "rejected"
            raise NliUnavailable("the model did not answer in time") from error
        except Exception as error:
            raise NliUnavailable(f"the model failed with {type(error).__name__}") from error
        finally:
            NLI_REQUESTS.labels(outcome).inc()
        if outcome != "ok":
            raise NliUnavailable("the model gave what is no number")
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        said = shares[:, self._contradiction] / shares.sum(axis=1)
        both: list[bool] = (said.reshape(-1, 2).min(axis=1) >= self._config.least_probability).tolist()
        return both


def load_nli(config: NliConfig, threads: int | None) -> Nli | None:
    """The configured model, None without one; takes seconds. Raises StartupRefused when it cannot be loaded or used."""
    if config.provider == "none":
        return None
    if not config.model:
        raise StartupRefused("contradictions need MNEME_NLI__MODEL")
    from sentence_transformers import CrossEncoder  # noqa: PLC0415

    from app.embed.cross_encoder import PairModel  # noqa: PLC0415 - brings torch
    from app.embed.torch_model import BATCH_TOKENS, prepare_torch, settle  # noqa: PLC0415

    precision, dtype = prepare_torch(threads, config.precision)
    try:
        model = CrossEncoder(
            config.model, device="cpu", revision=config.revision, model_kwargs={"dtype": dtype}, trust_remote_code=False
        )
    except Exception as error:
        raise StartupRefused(f"{config.model} cannot be loaded: {type(error).__name__}") from error
    contradiction = _label(model, config.model)
    settle(model, precision)
    pairs = PairModel(model, config.max_tokens)
    pairs.forward(pairs.split(("start", "start"), "query"))  # the first pass allocates and is slow
    return Nli(pairs, BATCH_TOKENS, contradiction, config)


def _label(model: "CrossEncoder", name: str) -> int:
    """The number of the label that means contradiction."""
    labels = {int(number): str(label).casefold() for number, label in (model.config.id2label or {}).items()}
    found = [number for number, label in labels.items() if label.startswith(CONTRADICTION)]
    if model.num_labels != 3 or len(found) != 1:
        raise StartupRefused(f"{name} is no model of NLI: it needs three labels, one of them {CONTRADICTION}")
    return found[0]
