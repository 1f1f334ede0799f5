"""Which vectors may be compared: one active generation a database, claimed at start.

Invariant: a process whose model, prompts or calibration differ from the active generation does not start.
"""

from dataclasses import dataclass, fields
from datetime import datetime

from app.database import Database, sql
from app.embed.models import ModelSpec
from app.errors import StartupRefused


@dataclass(frozen=True, slots=True)
class Generation:
    """The active generation: its id in the rows, and what made their vectors."""

    generation_id: int
    spec: ModelSpec


async def claim_generation(database: Database, spec: ModelSpec, tokenizer_version: int, now: datetime) -> Generation:
    """Return the active generation, made from `spec` when the database has none.

    Raises StartupRefused, naming the differences and the command that migrates, when it was made by something else.
    """
    wanted = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name != "max_tokens"}
    wanted["tokenizer_version"] = tokenizer_version
    async with database.work() as transaction:
        await transaction.execute(_CLAIM, **wanted, now=now)
        row = await transaction.fetch_row(_ACTIVE)
        if row is not None:
            await transaction.execute(_ENSURE_INDEX, generation_id=row["generation_id"])
    if row is None:  # another process retired it between the two statements
        raise StartupRefused("the active embedding generation is just being replaced: start again", dependency=True)
    stored = {name: tuple(row[name]) if isinstance(row[name], list) else row[name] for name in wanted}
    different = sorted(name for name, value in wanted.items() if stored[name] != value)
    if different:
        changes = "; ".join(f"{name} stored {stored[name]!r}, configured {wanted[name]!r}" for name in different)
        raise StartupRefused(
            f"the stored vectors belong to another embedding generation ({changes}). Vectors of two generations are "
            "never compared: set the model back, or run `mneme reembed` to migrate"
        )
    return Generation(row["generation_id"], spec)


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
