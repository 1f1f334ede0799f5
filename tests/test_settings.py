"""Settings: every source, their order, and refusals that name the setting and never show its value."""

from pathlib import Path

import pytest

from app.errors import EXIT_CONFIGURATION, StartupRefused
from app.settings import fields, load_settings, origins, variable

SECRET = "hunter2-hunter2-hunter2"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_defaults_are_a_whole_configuration() -> None:
    settings = load_settings()
    assert settings.api.host == "127.0.0.1"
    assert settings.database.url is None
    assert origins() == {}


def test_environment_before_secret_file_before_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mneme.toml").write_text('[api]\nport = 1\nhost = "::1"\n[auth]\npepper = "from-the-file"\n')
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "MNEME_AUTH__PEPPER").write_text("from-a-secret-file\n")
    (secrets / "MNEME_API__PORT").write_text("2")
    monkeypatch.setenv("MNEME_SECRETS_DIR", str(secrets))
    monkeypatch.setenv("MNEME_API__PORT", "3")
    settings = load_settings()
    assert (settings.api.port, settings.api.host) == (3, "::1")
    assert settings.auth.pepper is not None
    assert settings.auth.pepper.get_secret_value() == "from-a-secret-file"
    assert origins() == {
        ("api", "port"): "environment",
        ("auth", "pepper"): "secret file",
        ("api", "host"): "mneme.toml",
    }


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("MNEME_API__PORT", SECRET, "MNEME_API__PORT"),
        ("MNEME_API__PORT", "70000", "MNEME_API__PORT"),
        ("MNEME_API__PROT", "80", "MNEME_API__PROT: no such setting"),
        ("MNEME_APY__PORT", "80", "MNEME_APY__PORT"),
        ("MNEME_PORT", "80", "MNEME_PORT"),
        ("MNEME_ENV", SECRET, "MNEME_ENV"),
        ("MNEME_DATABASE", "{" + SECRET, "database"),
        ("MNEME_DATABASE__URL", SECRET, "MNEME_DATABASE__URL"),
        ("MNEME_DATABASE__URL", f"postgresql://mneme:{SECRET}@db/mneme", "MNEME_DATABASE__URL"),
        ("MNEME_DATABASE__OWNER_URL", f"postgresql+asyncpg://mneme:{SECRET}@db:x/mneme", "MNEME_DATABASE__OWNER_URL"),
        ("MNEME_EMBED__PROVIDER", SECRET, "MNEME_EMBED__PROVIDER"),
        ("MNEME_EMBED__QUERY_WINDOW", SECRET, "query_window|QUERY_WINDOW|embed"),
        ("MNEME_CONFIG_FILE", "/no/such/file", "MNEME_CONFIG_FILE"),
        ("MNEME_SECRETS_DIR", "/no/such/folder", "MNEME_SECRETS_DIR"),
    ],
)
def test_a_wrong_or_unknown_one_names_itself_and_not_its_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, named: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(StartupRefused, match=named) as refused:
        load_settings()
    assert SECRET not in str(refused.value)
    assert refused.value.exit_code == EXIT_CONFIGURATION


@pytest.mark.parametrize(
    "text", [f"[api]\nport = '{SECRET}'\n", f"[api]\n{SECRET} = 1\n", f"[api\n{SECRET}", "[apy]\nport = 1\n"]
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "mneme.toml").write_text(text)
    with pytest.raises(StartupRefused, match=r"MNEME_AP|cannot be read"):
        load_settings()


def test_what_kubernetes_puts_beside_a_service_of_this_name_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("MNEME_SERVICE_HOST", "10.0.0.7"),
        ("MNEME_SERVICE_PORT_HTTP", "8000"),
        ("MNEME_PORT", "tcp://10.0.0.7:8000"),
        ("MNEME_PORT_8000_TCP_ADDR", "10.0.0.7"),
        ("MNEME_WORKER_SERVICE_PORT", "8001"),
    ):
        monkeypatch.setenv(name, value)
    assert load_settings().api.port == 8000


def test_every_setting_can_be_given_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for path, field in fields():
        default = field.get_default(call_default_factory=True, validated_data={})
        if isinstance(default, str | int | float | Path):
            monkeypatch.setenv(variable(path), str(default).lower() if isinstance(default, bool) else str(default))
    assert load_settings() == load_settings(env="development")
    assert len(origins()) > 30
