"""FATES: what bringing back one tenant or subject does with each table, one row a table; a test knows all tables."""

from typing import Final, Literal

from sqlalchemy import DefaultClause

from app.tables import metadata

Fate = Literal["tenant", "subject", "memory", "part", "trace", "derived", "passing"]
"""tenant: added where missing when a whole tenant comes back, else left alone. subject, memory: the rows that come
back. part: replaced together with its memory. trace: added where missing. derived: made anew from the rest. passing:
work and answers of a moment that is over, and what must outlive a restore."""

FATES: Final[dict[str, Fate]] = {
    "tenants": "tenant",
    "api_keys": "tenant",
    "webhooks": "tenant",
    "subjects": "subject",
    "memories": "memory",
    "memory_usage": "part",
    "memory_windows": "part",
    "memory_archive": "part",
    "memory_versions": "trace",
    "memory_sources": "trace",
    "memory_links": "trace",
    "memory_events": "trace",
    "legal_holds": "trace",
    "memory_terms": "derived",
    "memory_facets": "derived",
    "term_statistics": "derived",
    "subject_stamps": "derived",
    "embedding_generations": "derived",
    "other_windows": "derived",
    "embedding_queue": "derived",
    "kind_searches": "derived",
    "consolidations": "passing",
    "consolidation_marks": "passing",
    "idempotency_keys": "passing",
    "operations": "passing",
    "job_runs": "passing",
    "jobs": "passing",
    "reinforcement_queue": "passing",
    "erasures": "passing",
    "session_windows": "passing",
    "outbox": "passing",
    "webhook_deliveries": "passing",
}


def tables_of(fate: Fate) -> list[str]:
    """The tables of a fate that this schema has, those that others point at first."""
    return [table.name for table in metadata.sorted_tables if FATES.get(table.name) == fate]


def columns_of(table: str) -> list[str]:
    """The columns of a table that are stored, not computed."""
    return [column.name for column in metadata.tables[table].columns if column.computed is None]


def brought(table: str, name: str, row: str = "old") -> str:
    """A stored column of a row that was kept as JSON, as SQL: a row older than the column has its default."""
    column = metadata.tables[table].columns[name]
    default = column.server_default
    if column.nullable or not isinstance(default, DefaultClause):
        return f"{row}.{name}"
    return f"coalesce({row}.{name}, {default.arg})"
