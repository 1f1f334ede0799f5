"""Where backups go, who makes them, who can read them and how long they stay."""

from pathlib import Path

from pydantic import BaseModel, Field, SecretStr


class BackupConfig(BaseModel, extra="forbid"):
    """Settings of backup, verification and restore."""

    store: str | None = Field(
        None, description="Where backups go: a folder or s3://bucket/prefix; empty: data_dir/backups."
    )
    archive_store: str | None = Field(
        None, description="Where `mneme archive export` moves archived memories, like `store`; empty: data_dir/archive."
    )
    s3_endpoint: str | None = Field(None, description="URL of an S3-compatible service; empty: Amazon's.")
    s3_region: str = Field("us-east-1", description="Region of the bucket.")
    s3_access_key_id: SecretStr | None = Field(None, description="Access key; empty: as AWS tools find theirs.")
    s3_secret_access_key: SecretStr | None = Field(None, description="Secret of the access key.")
    key: SecretStr | None = Field(
        None, description="64 hexadecimal digits (`openssl rand -hex 32`) with which new backups are encrypted."
    )
    old_keys: tuple[SecretStr, ...] = Field((), description="Keys of older backups, tried after `key`.")
    database_url: SecretStr | None = Field(
        None,
        description="postgresql+asyncpg://… of a login that reads past row security (see docs/backup.md); default: the "
        "owner's, or the embedded server's superuser.",
    )
    scratch_url: SecretStr | None = Field(
        None, description="A database on a server where scratch databases may be made; default: where backups are read."
    )
    programs: Path | None = Field(None, description="Folder of pg_dump and pg_restore; default: wheel, system, PATH.")
    keep_daily: int = Field(7, ge=1, description="Days of which the last good backup is kept.")
    keep_weekly: int = Field(0, ge=0, description="Weeks of which the last good backup is kept.")
    keep_monthly: int = Field(0, ge=0, description="Months of which the last good backup is kept.")
    shrink_limit: float = Field(
        0.5, gt=0, le=1, description="A backup with so much less of the rows of the one before counts as failed."
    )
    searches: int = Field(20, ge=1, le=1000, description="Tenants of which one search is noted and tried again.")
