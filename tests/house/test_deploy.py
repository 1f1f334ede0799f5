"""deploy/ without a container engine: every command, setting and file that it names exists; what bites is ruled out."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.errors import EXIT_HELD
from tests.house.commands import VARIABLES, command_exists
from workers.jobs import JOBS

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text(encoding="utf-8"))
OURS = [name for name, service in COMPOSE["services"].items() if service["image"] == "mneme"]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()


def instructions(name: str) -> list[str]:
    return [line.removeprefix(name).strip() for line in DOCKERFILE if line.startswith(f"{name} ")]


@pytest.mark.parametrize("name", OURS)
def test_services_run_commands_that_exist_with_settings_that_exist(name: str) -> None:
    service = COMPOSE["services"][name]
    assert command_exists(service["command"])
    assert set(service["environment"]) <= VARIABLES


def test_the_compose_file_reads_only_variables_of_the_example() -> None:
    text = (ROOT / "deploy/compose.yaml").read_text(encoding="utf-8")
    example = (ROOT / "deploy/example.env").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w+)", text)) == set(re.findall(r"^(\w+)=$", example, re.MULTILINE))


def test_every_process_has_an_init_and_health_checks_need_no_shell() -> None:
    """An orphaned `sh -c pg_isready` that fails restarts PostgreSQL when the postmaster is process 1."""
    for service in COMPOSE["services"].values():
        assert service["init"] is True
        if "healthcheck" in service:
            assert service["healthcheck"]["test"][0] == "CMD"


def test_one_shot_steps_come_in_order() -> None:
    after = {name: service.get("depends_on", {}) for name, service in COMPOSE["services"].items()}
    done = {"condition": "service_completed_successfully"}
    assert after["migrate"] == {"postgres": {"condition": "service_healthy"}}
    assert after["roles"] == {"migrate": done}
    assert after["api"] == after["worker"] == {"roles": done}


def test_the_image_copies_files_that_exist_and_that_the_build_context_has() -> None:
    sources = [word for line in instructions("COPY") if "--from" not in line for word in shlex.split(line)[:-1]]
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignore


def test_the_image_runs_commands_that_exist_with_settings_that_exist_as_nobody_special() -> None:
    assert set(re.findall(r"(MNEME_\w+)=", "\n".join(instructions("ENV")))) <= VARIABLES
    assert json.loads(instructions("ENTRYPOINT")[0]) == ["mneme"]
    assert command_exists(json.loads(instructions("CMD")[0]))
    for line in instructions("RUN"):
        if "/bin/mneme " in line:
            assert command_exists(shlex.split(line)[1:])
    assert instructions("USER") == ["mneme"]


def test_cron_and_systemd_run_jobs_that_exist_at_the_hours_of_the_schedule() -> None:
    folder = ROOT / "deploy/cron"
    nights = {job.name: job.cron for job in JOBS if job.every_seconds is None}
    table = [line for line in (folder / "crontab").read_text(encoding="utf-8").splitlines() if line[:1].isdigit()]
    for line in table:
        *when, command = line.split(maxsplit=5)
        words = shlex.split(command.partition(">>")[0])
        assert words[0] == "mneme"
        assert command_exists(words[1:])
        assert nights[words[3]] == " ".join(when)
    service = (folder / "mneme-job@.service").read_text(encoding="utf-8")
    (started,) = re.findall(r"^ExecStart=\S*/mneme (.*)$", service, re.MULTILINE)
    assert command_exists(started.split())
    assert f"SuccessExitStatus={EXIT_HELD}" in service
    for timer in folder.glob("*.timer"):
        text = timer.read_text(encoding="utf-8")
        (name,) = re.findall(r"^Unit=mneme-job@(\w+)\.service$", text, re.MULTILINE)
        ((day, hour, minute),) = re.findall(
            r"^OnCalendar=(?:(\w+) )?\*-\*-\* (\d\d):(\d\d):00 Asia/Shanghai$", text, re.MULTILINE
        )
        assert nights[name] == f"{int(minute)} {int(hour)} * * {day.lower() or '*'}"
    assert len(table) == len(list(folder.glob("*.timer"))) > 0


def test_the_image_takes_the_torch_of_the_project() -> None:
    pinned = re.findall(r'"(torch==[\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert len(pinned) == 1
    assert pinned[0] in "\n".join(instructions("RUN"))
