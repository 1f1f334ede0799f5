"""Sizes as law: files of at most 400 lines (tests 500), functions of at most 60, at most 7 parameters."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [path for folder in ("app", "workers", "migrations") for path in sorted((ROOT / folder).rglob("*.py"))]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Function):
            yield node


def parameters(function: Function) -> int:
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    migration = "versions" in path.parts  # a first schema is one long list of columns
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert migration or lines <= (500 if path in TESTS else 400), f"{lines} lines"
    for function in functions(path):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        assert migration or length <= 60, f"{function.name}: {length} lines"
        if path not in TESTS and not typer_command(function):
            assert parameters(function) <= 7, f"{function.name}: {parameters(function)} parameters"


def typer_command(function: Function) -> bool:
    """A command's options are its user's, not its caller's."""
    return any("Annotated" in ast.unparse(argument.annotation or ast.Constant("")) for argument in function.args.args)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = ast.get_docstring(tree)
    assert not tree.body or said, "no docstring"
