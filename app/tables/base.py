"""The metadata that all tables share, and the columns and constraints of which they are made."""

from typing import Any

from sqlalchemy import CheckConstraint, Column, DateTime, ForeignKeyConstraint, MetaData, Text, Uuid

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)


def tenant_column() -> Column[Any]:
    return Column("tenant_id", Uuid, primary_key=True)


def subject_column() -> Column[Any]:
    return Column("subject_id", Uuid, primary_key=True)


def memory_column() -> Column[Any]:
    return Column("memory_id", Uuid, primary_key=True)


def time_column(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


def text_column(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, Text, nullable=nullable)


def of_tenant() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"], ondelete="CASCADE")


def of_subject() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["tenant_id", "subject_id"], ["subjects.tenant_id", "subjects.subject_id"], ondelete="CASCADE"
    )


def of_memory(column: str = "memory_id") -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["tenant_id", "subject_id", column],
        ["memories.tenant_id", "memories.subject_id", "memories.memory_id"],
        ondelete="CASCADE",
    )


def one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(value) for value in values)})", name=column)
