"""Powers of two are MiB and GiB everywhere: the label GB hid the fault that this project exists for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("neobert", "launcher", "profiles", "validators")
DECIMAL_LABEL = re.compile(r"(?<![A-Za-z])[MG]B(?![A-Za-z/])")


def strings_of(source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    pages = {id(node.body[0].value) for node in ast.walk(tree) if has_docstring(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pages:
            yield node.lineno, node.value


def has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return ast.get_docstring(node) is not None


def decimal_labels(source: str) -> list[int]:
    return [line for line, text in strings_of(source) if DECIMAL_LABEL.search(text)]


@pytest.mark.parametrize("room", ROOMS)
def test_no_string_labels_memory_in_decimal_units(room: str) -> None:
    offenders = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / room).rglob("*.py")
        for line in decimal_labels(path.read_text(encoding="utf-8"))
    }
    assert not offenders


def test_a_planted_label_is_caught() -> None:
    assert decimal_labels('print(f"{mib / 1024:.1f} GB")') == [1]
    assert decimal_labels('print(f"{mib / 1024:.1f} GiB")') == []
