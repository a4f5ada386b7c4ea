"""The size budget: a file is one idea, a function one step. The limits only go down."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES = 400
FUNCTION_LINES = 60
MEMBERS = ("libs", "kernels", "services", "bench")


def sources() -> list[Path]:
    return [
        path
        for member in MEMBERS
        for path in sorted((ROOT / member).rglob("*.py"))
        if "__pycache__" not in path.parts
    ]


def function_lengths(path: Path) -> list[tuple[str, int]]:
    """Name and length of each function; its docstring does not count."""
    rows = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            length = node.end_lineno - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node) and first.end_lineno:
                length -= first.end_lineno - first.lineno + 1
            rows.append((f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", length))
    return rows


def test_the_budget_sees_every_member():
    roots = {path.relative_to(ROOT).parts[0] for path in sources()}
    assert {"libs", "kernels", "services"} <= roots


def test_no_file_is_longer_than_the_budget():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    long = {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > FILE_LINES}
    assert not long


def test_no_function_is_longer_than_the_budget():
    long = {
        name: length
        for path in sources()
        for name, length in function_lengths(path)
        if length > FUNCTION_LINES
    }
    assert not long


@pytest.mark.parametrize("name", ["os.environ", "os.getenv"])
def test_the_environment_is_read_in_one_place(name: str):
    readers = [
        str(path.relative_to(ROOT))
        for path in sources()
        if name in path.read_text(encoding="utf-8")
        and path.parts[-2:] != ("antiphon_core", "config.py")
    ]
    assert not readers
