"""Every setting of the service: the rooms' own config models, gathered from environment, secret files and one file.

Invariant: an unknown name or a wrong value stops the start and names itself; no message ever shows a value.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NestedSecretsSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from app.backup import BackupConfig
from app.connections import DatabaseConfig
from app.consolidate import ConsolidateConfig
from app.embed import EmbedConfig, NliConfig, RerankConfig
from app.errors import StartupRefused
from app.extract import ExtractConfig
from app.forget import ForgetConfig
from app.llm import LlmConfig
from app.operations import OperationConfig
from app.recall import RecallConfig
from app.remember import RememberConfig, SessionConfig
from app.webhooks import WebhookConfig

PREFIX = "MNEME_"
DELIMITER = "__"
CONFIG_FILE = "MNEME_CONFIG_FILE"
SECRETS_DIR = "MNEME_SECRETS_DIR"
API_KEY = "MNEME_API_KEY"  # no setting: what the commands that speak HTTP show to a service
DEFAULT_FILE = Path("mneme.toml")

# What Kubernetes puts into every container beside a Service named `mneme`.
SERVICE_LINK = re.compile(r"MNEME_(\w+_)?(SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP))(_\w+)?$")


class ApiConfig(BaseModel, extra="forbid"):
    """Where the API listens and what it accepts."""

    host: str = Field("127.0.0.1", description="Address to listen on. Without an API key only loopback is allowed.")
    port: int = Field(8000, ge=1, le=65535, description="Port to listen on.")
    body_limit_bytes: int = Field(1 << 20, ge=1024, description="Largest request body.")
    batch_body_limit_bytes: int = Field(8 << 20, ge=1024, description="Largest body of a batch write.")
    require_if_match: bool = Field(False, description="PATCH and DELETE need an If-Match header (428 without).")
    processes: int = Field(1, ge=1, le=64, description="Processes that answer; each has a model and a pool of its own.")
    docs: bool = Field(True, description="Serve /docs and /openapi.json.")
    drain_seconds: float = Field(20.0, ge=0, description="How long running requests may take to end after SIGTERM.")


class AuthConfig(BaseModel, extra="forbid"):
    """The secret behind API keys and cursors."""

    pepper: SecretStr | None = Field(
        None,
        description="At least 16 characters, the same for all processes, from which stored key fingerprints and cursor "
        "signatures are made; required in production, else made once in data_dir/pepper. A new one voids every key.",
    )
    required: bool = Field(False, description="Ask for a key even on loopback before the first key was made.")


class WorkerConfig(BaseModel, extra="forbid"):
    """The process that works in the background."""

    metrics_host: str = Field("127.0.0.1", description="Address of the worker's /metrics.")
    metrics_port: int = Field(8001, ge=1, le=65535, description="Port of the worker's /metrics.")
    lease_seconds: float = Field(60.0, ge=1, description="A job run without a heartbeat for so long may be taken over.")
    drain_seconds: float = Field(20.0, ge=0, description="How long running jobs may take to end after SIGTERM.")


class JobsConfig(BaseModel, extra="forbid"):
    """When the jobs of the night run, and for how long."""

    timezone: str = Field("Asia/Shanghai", description="Zone of the clock that the expressions below speak of.")
    cron: dict[str, str] = Field(
        default_factory=dict,
        description='Cron expression of a job by its name, instead of its own: `{"forget": "30 2 * * *"}`; `off` '
        "switches it off.",
    )
    jitter_seconds: float = Field(300.0, ge=0, description="A job of the night begins up to so much later.")
    budget_seconds: float = Field(7200.0, gt=0, description="After so long a job leaves the rest for the next time.")
    rest: float = Field(2.0, ge=0, description="Pause of the clean-up after each batch, in times the duration of that.")

    @field_validator("timezone")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            return ZoneInfo(name).key
        except (KeyError, OSError, ValueError):
            raise ValueError("no such zone, such as Asia/Shanghai or UTC") from None


class LogConfig(BaseModel, extra="forbid"):
    """What is written to standard output, one JSON object a line."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least severe level to write.")


class Settings(BaseSettings):
    """The whole configuration; call `load_settings()` to get one with a plain message when it is wrong."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter=DELIMITER,
        env_ignore_empty=True,
        nested_model_default_partial_update=True,
        extra="forbid",
        hide_input_in_errors=True,
    )

    env: Literal["development", "production"] = Field(
        "development", description="`production` refuses the embedded PostgreSQL and needs MNEME_AUTH__PEPPER."
    )
    data_dir: Path = Field(
        Path(".data"), description="Where the embedded PostgreSQL, the prepared model and the pepper are kept."
    )
    api: ApiConfig = Field(default_factory=ApiConfig)
    auth: AuthConfig = Field(default_factory=AuthConfig)
    database: DatabaseConfig = Field(default_factory=DatabaseConfig)
    embed: EmbedConfig = Field(default_factory=EmbedConfig)
    remember: RememberConfig = Field(default_factory=RememberConfig)
    llm: LlmConfig = Field(default_factory=LlmConfig)
    extract: ExtractConfig = Field(default_factory=ExtractConfig)
    sessions: SessionConfig = Field(default_factory=SessionConfig)
    operations: OperationConfig = Field(default_factory=OperationConfig)
    webhooks: WebhookConfig = Field(default_factory=WebhookConfig)
    recall: RecallConfig = Field(default_factory=RecallConfig)
    rerank: RerankConfig = Field(default_factory=RerankConfig)
    nli: NliConfig = Field(default_factory=NliConfig)
    worker: WorkerConfig = Field(default_factory=WorkerConfig)
    backup: BackupConfig = Field(default_factory=BackupConfig)
    forget: ForgetConfig = Field(default_factory=ForgetConfig)
    consolidate: ConsolidateConfig = Field(default_factory=ConsolidateConfig)
    jobs: JobsConfig = Field(default_factory=JobsConfig)
    log: LogConfig = Field(default_factory=LogConfig)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, *(source for _, source in _sources(settings_cls)))


_URLS = (
    ("database", "url"),
    ("database", "owner_url"),
    ("database", "replica_url"),
    ("backup", "database_url"),
    ("backup", "scratch_url"),
)


def load_settings(**given: Any) -> Settings:
    """Read the settings; `given` wins over the environment, that over secret files, these over the file.

    Raises StartupRefused that names every wrong or unknown setting.
    """
    unknown = sorted(_unknown_variables(os.environ))
    if unknown:
        raise StartupRefused(f"unknown setting: {', '.join(unknown)}; `mneme config show` lists the known ones")
    try:
        settings = Settings(**given)
    except ValidationError as error:
        lines = [f"\n  {variable(wrong['loc'])}: {_said(wrong)}" for wrong in error.errors(include_input=False)]
        raise StartupRefused("wrong setting" + "".join(lines)) from None
    except (SettingsError, OSError, ValueError) as error:
        # The cause quotes what it could not read, and that may be a secret; the message names source and field only.
        raise StartupRefused(f"settings cannot be read: {error}") from None
    for path in _URLS:
        secret: SecretStr | None = getattr(getattr(settings, path[0]), path[1])
        if secret is not None and not _speaks_asyncpg(secret.get_secret_value()):
            form = "postgresql+asyncpg://user:password@host/database"
            raise StartupRefused(f"wrong setting\n  {variable(path)}: must have the form {form}")
    return settings


def variable(path: tuple[int | str, ...]) -> str:
    """Return the environment variable of a setting: ("api", "port") is MNEME_API__PORT."""
    return PREFIX + DELIMITER.join(map(str, path)).upper()


def fields(
    model: type[BaseModel] = Settings, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Yield path and field of every single setting."""
    for name, field in model.model_fields.items():
        nested = [kind for kind in (field.annotation, *get_args(field.annotation)) if _is_model(kind)]
        if nested:
            yield from fields(nested[0], (*path, name))
        else:
            yield (*path, name), field


def origins() -> dict[tuple[str, ...], str]:
    """Return where each setting that is not a default comes from: `environment`, `secret file` or the file's name."""
    found: dict[tuple[str, ...], str] = {}
    for name, source in reversed(_sources(Settings)):
        found |= dict.fromkeys(_leaves(source()), name)
    return found


def _sources(settings: type[BaseSettings]) -> list[tuple[str, PydanticBaseSettingsSource]]:
    """Strongest first."""
    sources: list[tuple[str, PydanticBaseSettingsSource]] = [("environment", EnvSettingsSource(settings))]
    if directory := os.environ.get(SECRETS_DIR):
        if not Path(directory).is_dir():
            raise StartupRefused(f"{SECRETS_DIR} names no folder: {directory}")
        secrets = NestedSecretsSettingsSource(
            EnvSettingsSource(settings),
            secrets_dir=directory,
            secrets_prefix=PREFIX,
            secrets_nested_delimiter=DELIMITER,
        )
        sources.append(("secret file", secrets))
    named = os.environ.get(CONFIG_FILE)
    file = Path(named) if named else DEFAULT_FILE
    if named and not file.is_file():
        raise StartupRefused(f"{CONFIG_FILE} names no file: {file}")
    if file.is_file():
        sources.append((str(file), TomlConfigSettingsSource(settings, toml_file=file)))
    return sources


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield MNEME_ variables whose first part is no setting; the model itself refuses unknown later parts."""
    for name, value in environment.items():
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in (CONFIG_FILE, SECRETS_DIR, API_KEY):
            continue
        first = upper.removeprefix(PREFIX).partition(DELIMITER)[0].lower()
        if first not in Settings.model_fields and not SERVICE_LINK.match(upper) and "://" not in value:
            yield name


def _leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name)


def _speaks_asyncpg(url: str) -> bool:
    try:
        return make_url(url).drivername == "postgresql+asyncpg"
    except (ArgumentError, ValueError):
        return False


def _said(wrong: ErrorDetails) -> str:
    return "no such setting" if wrong["type"] == "extra_forbidden" else wrong["msg"]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
