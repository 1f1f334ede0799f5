"""Which vectors may be compared: one active generation a database, claimed at start.

Invariant: a process whose model or prompts differ from the active generation does not start; all processes use the
stored calibration.
"""

from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final

from app import telemetry
from app.database import Database, sql
from app.embed.models import ModelSpec
from app.errors import DeadlineExceeded, StartupRefused


@dataclass(frozen=True, slots=True)
class Generation:
    """The active generation: its id in the rows, and what made their vectors."""

    generation_id: int
    spec: ModelSpec


async def claim_generation(database: Database, spec: ModelSpec, tokenizer_version: int, now: datetime) -> Generation:
    """Return the active generation, made from `spec` when the database has none; its stored calibration wins.

    Raises StartupRefused, naming the differences and the command that migrates, when it was made by something else, or
    when the settings state another calibration.
    """
    generation = await _claim(database, spec, tokenizer_version, now)
    for name in sorted(spec.stated):
        stored, stated = getattr(generation.spec, name), getattr(spec, name)
        if stored != stated:
            raise StartupRefused(
                f"MNEME_EMBED__{name.upper()} is {stated}, but the stored calibration is {stored}: unset it, or run "
                "`mneme model calibrate --write`, which stores what the settings state"
            )
    return generation


async def stored_calibration(database: Database, spec: ModelSpec) -> ModelSpec:
    """`spec` with the windows of the active generation; as it is when there is none of this model."""
    async with database.work() as transaction:
        row = await transaction.fetch_row(_ACTIVE)
    same = row is not None and (row["model"], row["revision"]) == (spec.model, spec.revision)
    return _calibrated(spec, row) if same else spec


async def store_calibration(database: Database, spec: ModelSpec, tokenizer_version: int, now: datetime) -> None:
    """Give the active generation, made when the database has none, the windows of `spec`.

    Running services notice at their next start. Raises StartupRefused as claim_generation does for another model.
    """
    generation = await _claim(database, spec, tokenizer_version, now)
    async with database.work() as transaction:
        await transaction.execute(
            _CALIBRATE,
            generation_id=generation.generation_id,
            query_window=spec.query_window,
            pair_window=spec.pair_window,
        )


async def _claim(database: Database, spec: ModelSpec, tokenizer_version: int, now: datetime) -> Generation:
    wanted = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name not in _NOT_STORED}
    wanted["tokenizer_version"] = tokenizer_version
    async with database.work() as transaction:
        await transaction.execute(_CLAIM, **wanted, now=now)
        row = await transaction.fetch_row(_ACTIVE)
    if row is not None:
        await _ensure_index(database, row["generation_id"])
    else:  # another process retired it between the two statements
        raise StartupRefused("the active embedding generation is just being replaced: start again", dependency=True)
    different = sorted(name for name, value in wanted.items() if name not in _WINDOWS and row[name] != value)
    if different:
        changes = "; ".join(f"{name} stored {row[name]!r}, configured {wanted[name]!r}" for name in different)
        raise StartupRefused(
            f"the stored vectors belong to another embedding generation ({changes}). Vectors of two generations are "
            "never compared: set the model back, or begin with an empty database (`mneme reembed`, which will migrate, "
            "is not there yet)"
        )
    return Generation(row["generation_id"], _calibrated(spec, row))


async def _ensure_index(database: Database, generation_id: int) -> None:
    """Made at once while no row is in it; over many rows `mneme repair` makes it, which holds no write up."""
    try:
        async with database.work() as transaction:
            await transaction.execute(_ENSURE_INDEX, generation_id=generation_id)
    except DeadlineExceeded:
        telemetry.log().warning("vector_index_missing", generation_id=generation_id, detail="run `mneme repair`")


def _calibrated(spec: ModelSpec, row: Any) -> ModelSpec:
    (query_low, query_high), (pair_low, pair_high) = row["query_window"], row["pair_window"]
    return replace(spec, query_window=(query_low, query_high), pair_window=(pair_low, pair_high))


_WINDOWS: Final = ("query_window", "pair_window")
_NOT_STORED: Final = ("max_tokens", "stated")
_CALIBRATE = sql("""
    UPDATE embedding_generations
    SET query_window = cast(:query_window AS float8[]), pair_window = cast(:pair_window AS float8[])
    WHERE generation_id = cast(:generation_id AS smallint) AND state = 'active'
""")
_CLAIM = sql("""
    INSERT INTO embedding_generations (
        generation_id, model, revision, dimension, query_prompt, document_prompt, tokenizer_version,
        query_window, pair_window, state, created_at
    )
    SELECT coalesce((SELECT max(generation_id) FROM embedding_generations), 0) + 1, :model, :revision, :dimension,
           :query_prompt, :document_prompt, :tokenizer_version, :query_window, :pair_window, 'active', :now
    WHERE NOT EXISTS (SELECT FROM embedding_generations WHERE state = 'active')
    ON CONFLICT DO NOTHING
""")
_ENSURE_INDEX = sql("SELECT ensure_ann_index(cast(:generation_id AS smallint))")
_ACTIVE = sql("""
    SELECT generation_id, model, revision, dimension, query_prompt, document_prompt, tokenizer_version,
           query_window, pair_window
    FROM embedding_generations WHERE state = 'active'
""")
