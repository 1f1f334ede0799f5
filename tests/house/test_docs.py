"""What the pages say is true: every setting, target, command, file, kind and job that they name exists."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import root
from app.remember import KINDS
from app.settings import fields, variable
from tests.house.commands import VARIABLES, command_exists
from workers.jobs import JOBS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_every_setting_has_a_meaning_and_is_documented() -> None:
    assert not [variable(path) for path, field in fields() if not field.description]
    made = CliRunner().invoke(root.app, ["config", "docs"])
    assert made.exit_code == 0
    assert made.output == (ROOT / "docs/settings.md").read_text(encoding="utf-8"), "run `make settings`"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_name_only_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for code in re.findall(r"`([^`\n]+)`", text) + re.findall(
        r"^(?:\.venv/bin/)?(?:make|mneme) .*$", text, re.MULTILINE
    ):
        words = code.partition("#")[0].removeprefix(".venv/bin/").split()
        if words[:1] == ["make"]:
            assert set(words[1:2]) <= TARGETS, code
        if words[:1] == ["mneme"] and len(words) > 1:
            assert command_exists(words[1:]), code
    assert {name for name in re.findall(r"\bMNEME_\w*[A-Z]\b", text) if "SERVICE_HOST" not in name} <= VARIABLES


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_link_only_to_files_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_readme_has_a_row_for_each_kind_and_job() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", README, re.MULTILINE))
    assert {name: kind.meaning for name, kind in KINDS.items()}.items() <= {
        name: meaning.removesuffix(" (default)") for name, meaning in rows.items()
    }.items()
    units = {"s": 1, "min": 60, "h": 3600}
    for job in JOBS:
        every = rows[job.name].split(",")[0]
        if job.every_seconds is None:
            assert every == ("night" if job.cron.endswith(" *") else "week")
        else:
            number, unit = every.split()
            assert float(number) * units[unit] == job.every_seconds
        assert ("once over all replicas" in rows[job.name]) == job.once


def test_make_help_lists_every_target() -> None:
    described = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))
    phony = set(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split())
    assert described == phony == TARGETS
