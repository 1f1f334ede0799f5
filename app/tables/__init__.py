"""Every table of Mneme, as SQLAlchemy Core metadata: the life of a memory, what becomes of it, and work."""

from app.tables.base import metadata
from app.tables.consolidation import consolidations
from app.tables.forgetting import jobs
from app.tables.generations import embedding_generations
from app.tables.memory import CONTENT_TYPES, RELATIONS, STATUSES
from app.tables.tenants import DEFAULT_TENANT
from app.tables.work import job_runs

GLOBAL_TABLES = (job_runs, jobs, embedding_generations)

__all__ = ["CONTENT_TYPES", "DEFAULT_TENANT", "GLOBAL_TABLES", "RELATIONS", "STATUSES", "consolidations", "metadata"]
