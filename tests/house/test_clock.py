"""`now` is a parameter: only the entrances read the clock, and only app.clock reads the wall's."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENTRANCES = {"api", "cli"}
ROOMS = [
    path
    for path in sorted((ROOT / "app").rglob("*.py"))
    if path.relative_to(ROOT / "app").parts[0] not in ENTRANCES and path.name not in ("main.py", "clock.py")
]
WALL_CLOCK = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today"), ("time", "time")}
LOG_LINES = ROOT / "app" / "telemetry.py"  # a log line says when it was written


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_are_handed_the_time(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.module != "app.clock", f"line {node.lineno}: take `now` as a parameter"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and path != LOG_LINES:
            assert (node.value.id, node.attr) not in WALL_CLOCK, f"line {node.lineno}: reads the wall clock"
