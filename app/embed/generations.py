"""Which vectors may be compared: one active generation a database, claimed at start, and at most one other beside it.

Invariant: a process whose model or prompts are no generation's of this database does not start; all processes use the
stored calibration, and serve the active generation whatever the settings say of the one that was left for it.
"""

import asyncio
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from app import telemetry
from app.database import Database, sql
from app.embed.embedder import EmbedConfig, Embedder
from app.embed.loading import load_embedder
from app.embed.models import ModelSpec
from app.errors import Conflict, DeadlineExceeded, StartupRefused

State = Literal["active", "building", "previous", "retired"]


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation with its id in the rows, and what made their vectors."""

    generation_id: int
    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class Known:
    """A generation as the database knows it, without its model.

    `building`: a store moves to it; `previous`: it was left `switched_at` and is kept up, so that one may go back;
    `retired`: its vectors are going, or gone since `purged_at`. `only_used`: what was never hit is left out at first;
    `rate`: most texts a second; `lacking`: how many memories lack its vector, as last counted.
    """

    generation_id: int
    model: str
    dimension: int
    state: State
    source: dict[str, Any] | None
    only_used: bool
    rate: float | None
    lacking: int | None
    created_at: datetime
    switched_at: datetime | None
    purged_at: datetime | None


@dataclass(frozen=True, slots=True)
class Columns:
    """Where memories have their vectors of one generation."""

    embedding: str
    generation_id: str
    window_count: str
    windows: str


ACTIVE: Final = Columns("embedding", "generation_id", "window_count", "memory_windows")
OTHER: Final = Columns("other_embedding", "other_generation_id", "other_window_count", "other_windows")
"""A switch swaps these names in the database: a process that has not followed it yet finds its vectors here."""

BOTH: Final = (ACTIVE, OTHER)


async def open_embedder(
    database: Database, config: EmbedConfig, data_dir: Path, tokenizer_version: int, now: datetime
) -> tuple[Embedder, Generation]:
    """Load the model of the active generation, not yet started, and claim it; a database without one gets `config`'s.

    Settings that name a model which the store was moved from, or is on its way to, give way to the active one, with a
    warning. Raises StartupRefused as load_embedder and claim_generation do.
    """
    served = await served_config(database, config)
    embedder = await asyncio.to_thread(load_embedder, served, data_dir)
    generation = await claim_generation(database, embedder.spec, tokenizer_version, now, source=served.source())
    telemetry.EMBEDDING_GENERATION.set(generation.generation_id)
    return embedder, generation


async def served_config(database: Database, config: EmbedConfig) -> EmbedConfig:
    """The configuration of the active generation's model, where `config` names another one that the database knows."""
    known = await known_generations(database)
    active = next((one for one in known if one.state == "active"), None)
    if active is None or active.source is None or active.source == config.source():
        return config
    if all(one.source != config.source() for one in known):
        return config
    telemetry.log().warning(
        "embedding_settings_name_another_generation", served=active.model, configured=config.model or config.provider
    )
    return config.of(active.source)


async def open_other(database: Database, config: EmbedConfig, data_dir: Path, other: Known) -> Embedder:
    """Load the model of a generation that is not served, not yet started. Raises StartupRefused when it is another."""
    assert other.source is not None
    embedder = await asyncio.to_thread(load_embedder, config.of(other.source), data_dir)
    async with database.work() as transaction:
        row = await transaction.fetch_row(_BY_ID, generation_id=other.generation_id)
    if row is None or (different := _differences(row, _identity(embedder.spec))):
        raise StartupRefused(f"the model of generation {other.generation_id} is not what it was: {different}")
    return embedder


async def claim_generation(
    database: Database, spec: ModelSpec, tokenizer_version: int, now: datetime, *, source: dict[str, Any] | None = None
) -> Generation:
    """Return the active generation, made from `spec` when the database has none; its stored calibration wins.

    `source` says where its model comes from. Raises StartupRefused, naming the differences and the command that
    migrates, when it was made by something else, or when the settings state another calibration.
    """
    generation = await _claim(database, spec, tokenizer_version, now, source)
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
    generation = await _claim(database, spec, tokenizer_version, now, None)
    async with database.work() as transaction:
        await transaction.execute(
            _CALIBRATE,
            generation_id=generation.generation_id,
            query_window=spec.query_window,
            pair_window=spec.pair_window,
        )


async def known_generations(database: Database) -> list[Known]:
    """All generations of the database, the oldest first."""
    async with database.work() as transaction:
        rows = await transaction.fetch(_KNOWN)
    return [Known(**row) for row in rows]


async def other_generation(database: Database) -> Known | None:
    """The generation beside the active one: that a store moves to, or has left and keeps up."""
    return next((one for one in await known_generations(database) if one.state in ("building", "previous")), None)


async def active_generation_id(database: Database) -> int | None:
    """Which generation is to be served now."""
    async with database.work() as transaction:
        found: int | None = await transaction.fetch_value(_ACTIVE_ID)
    return found


async def begin_generation(
    database: Database, spec: ModelSpec, tokenizer_version: int, source: dict[str, Any], now: datetime, *,
    only_used: bool, rate: float | None,
) -> int:  # fmt: skip
    """Note that the store is to move to the model of `spec`, or go on moving there; returns the generation's id.

    Raises Conflict when that model is the active one, or another move goes on or can still be taken back, and
    StartupRefused when no service ever said where the active model comes from.
    """
    identity = _identity(spec) | {"tokenizer_version": tokenizer_version}
    async with database.work() as transaction:
        await transaction.execute(_TAKE_TURNS)
        rows = {row["state"]: row for row in await transaction.fetch(_LIVE)}
        active, other = rows.get("active"), rows.get("building") or rows.get("previous")
        if active is None or active["source"] is None:
            raise StartupRefused("start the service once with the model of now: it notes where that comes from")
        if not _differences(active, identity):
            raise Conflict("the store is served by this model already")
        if other is not None and other["state"] == "previous":
            raise Conflict(
                f"{other['model']} is still kept, to go back to: `mneme reembed back`, or `mneme reembed purge` first"
            )
        if other is not None and _differences(other, identity):
            raise Conflict(f"the store is on its way to {other['model']}: `mneme reembed purge` gives that up")
        if other is not None:
            generation_id: int = other["generation_id"]
            await transaction.execute(_GO_ON, generation_id=generation_id, only_used=only_used, rate=rate)
            return generation_id
        return int(
            await transaction.fetch_value(
                _BEGIN, **identity, query_window=spec.query_window, pair_window=spec.pair_window, source=source,
                only_used=only_used, rate=rate, now=now,
            )
        )  # fmt: skip


async def note_lacking(database: Database, generation_id: int, lacking: int, *, only_used: bool) -> None:
    """Say how many memories lack the vector of a generation, and whether what is not used is still left out."""
    async with database.work() as transaction:
        await transaction.execute(_LACKING, generation_id=generation_id, lacking=lacking, only_used=only_used)


async def retire_generation(database: Database, generation_id: int) -> None:
    """From now on its vectors may go, and no store comes back to it."""
    async with database.work() as transaction:
        await transaction.execute(_RETIRE, generation_id=generation_id)


async def drop_generation_indexes(database: Database, generation_id: int) -> None:
    """Drop the indexes of a retired generation. Raises DeadlineExceeded when the table is too busy for a second."""
    async with database.work() as transaction:
        await transaction.execute(_DROP_INDEXES, generation_id=generation_id)


async def note_purged(database: Database, generation_id: int, now: datetime) -> None:
    """Say that no vector of a retired generation is left."""
    async with database.work() as transaction:
        await transaction.execute(_PURGED, generation_id=generation_id, now=now)


async def _claim(
    database: Database, spec: ModelSpec, tokenizer_version: int, now: datetime, source: dict[str, Any] | None
) -> Generation:
    wanted = _identity(spec) | {"tokenizer_version": tokenizer_version}
    windows = {"query_window": spec.query_window, "pair_window": spec.pair_window}
    async with database.work() as transaction:
        await transaction.execute(_CLAIM, **wanted, **windows, source=source, now=now)
        row = await transaction.fetch_row(_ACTIVE)
        different = "" if row is None else _differences(row, wanted)
        if row is not None and not different and source is not None and row["source"] is None:
            await transaction.execute(_SOURCE, generation_id=row["generation_id"], source=source)
    if row is None:  # another process retired it between the two statements
        raise StartupRefused("the active embedding generation is just being replaced: start again", dependency=True)
    if row is not None and different and not _differences(row, _identity(spec)):
        raise StartupRefused(
            f"the stored keyword weights were made by another tokenizer ({different}), and nothing makes them anew: "
            "start the release that made them"
        )
    if different:
        raise StartupRefused(
            f"the stored vectors belong to another embedding generation ({different}). Vectors of two generations are "
            "never compared: set the model back, and move the store while it serves with `mneme reembed --to NAME`"
        )
    await _ensure_index(database, row["generation_id"])
    return Generation(row["generation_id"], _calibrated(spec, row))


async def _ensure_index(database: Database, generation_id: int) -> None:
    """Made at once while no row is in it; over many rows `mneme repair` makes it, which holds no write up."""
    try:
        async with database.work() as transaction:
            await transaction.execute(_ONE_AT_A_TIME)  # IF NOT EXISTS does not wait for whoever is making it
            await transaction.execute(_ENSURE_INDEX, generation_id=generation_id)
    except DeadlineExceeded:
        telemetry.log().warning("vector_index_missing", generation_id=generation_id, detail="run `mneme repair`")


def _identity(spec: ModelSpec) -> dict[str, Any]:
    return {field.name: getattr(spec, field.name) for field in fields(spec) if field.name not in _NOT_COMPARED}


def _differences(row: Any, wanted: dict[str, Any]) -> str:
    """What differs, in words; empty: nothing."""
    different = sorted(name for name, value in wanted.items() if row[name] != value)
    return "; ".join(f"{name} stored {row[name]!r}, configured {wanted[name]!r}" for name in different)


def _calibrated(spec: ModelSpec, row: Any) -> ModelSpec:
    (query_low, query_high), (pair_low, pair_high) = row["query_window"], row["pair_window"]
    return replace(spec, query_window=(query_low, query_high), pair_window=(pair_low, pair_high))


_NOT_COMPARED: Final = ("max_tokens", "stated", "query_window", "pair_window")
_CALIBRATE = sql("""
    UPDATE embedding_generations
    SET query_window = cast(:query_window AS float8[]), pair_window = cast(:pair_window AS float8[])
    WHERE generation_id = cast(:generation_id AS smallint) AND state = 'active'
""")
_INSERT: Final = """
    INSERT INTO embedding_generations (
        generation_id, model, revision, dimension, query_prompt, document_prompt, tokenizer_version,
        query_window, pair_window, source, created_at, state, only_used, rate
    )
    SELECT coalesce((SELECT max(generation_id) FROM embedding_generations), 0) + 1, :model, :revision, :dimension,
           :query_prompt, :document_prompt, :tokenizer_version, :query_window, :pair_window, cast(:source AS jsonb),
           :now
"""
_CLAIM = sql(f"""{_INSERT}, 'active', false, NULL
    WHERE NOT EXISTS (SELECT FROM embedding_generations WHERE state = 'active')
    ON CONFLICT DO NOTHING
""")
_BEGIN = sql(f"""{_INSERT}, 'building', cast(:only_used AS bool), cast(:rate AS real)
    RETURNING generation_id
""")
_GO_ON = sql("""
    UPDATE embedding_generations SET only_used = :only_used, rate = :rate
    WHERE generation_id = cast(:generation_id AS smallint)
""")
_SOURCE = sql("""
    UPDATE embedding_generations SET source = :source WHERE generation_id = cast(:generation_id AS smallint)
""")
_TAKE_TURNS = sql("SELECT pg_advisory_xact_lock(hashtextextended('mneme generations', 0))")
_ONE_AT_A_TIME = sql("SELECT pg_advisory_xact_lock(hashtextextended('ensure_ann_index', 0))")
_ENSURE_INDEX = sql("SELECT ensure_ann_index(cast(:generation_id AS smallint))")
_DROP_INDEXES = sql("SELECT drop_generation_indexes(cast(:generation_id AS smallint))")
_COLUMNS: Final = """
    generation_id, model, revision, dimension, query_prompt, document_prompt, tokenizer_version,
    query_window, pair_window, source, state
"""
_ACTIVE = sql(f"SELECT {_COLUMNS} FROM embedding_generations WHERE state = 'active'")
_BY_ID = sql(f"SELECT {_COLUMNS} FROM embedding_generations WHERE generation_id = cast(:generation_id AS smallint)")
_LIVE = sql(f"SELECT {_COLUMNS} FROM embedding_generations WHERE state <> 'retired'")
_ACTIVE_ID = sql("SELECT generation_id FROM embedding_generations WHERE state = 'active'")
_KNOWN = sql("""
    SELECT generation_id, model, dimension, state, source, coalesce(only_used, false) AS only_used,
           cast(rate AS float8) AS rate, lacking, created_at, switched_at, purged_at
    FROM embedding_generations ORDER BY generation_id
""")
_LACKING = sql("""
    UPDATE embedding_generations SET lacking = :lacking, only_used = :only_used
    WHERE generation_id = cast(:generation_id AS smallint)
""")
_PURGED = sql("""
    UPDATE embedding_generations SET purged_at = :now
    WHERE generation_id = cast(:generation_id AS smallint) AND state = 'retired'
""")
_RETIRE = sql("""
    UPDATE embedding_generations SET state = 'retired'
    WHERE generation_id = cast(:generation_id AS smallint) AND state IN ('building', 'previous')
""")
