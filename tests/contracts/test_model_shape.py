"""The plan and the rules ask a `ModelShape`, so they hold for every model family."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("neobert/plan", "profiles", "validators", "launcher")


def reads_the_section(source: str) -> Iterator[int]:
    """Yield the lines that read the section `model` of a config, or import its class."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr == "model" and "config" in ast.unparse(node.value):
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and any(name.name == "ModelConfig" for name in node.names):
            yield node.lineno


@pytest.mark.parametrize("room", ROOMS)
def test_only_families_read_the_section_model(room: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / room).rglob("*.py")
        for line in reads_the_section(path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_the_test_sees_each_way_to_read_it() -> None:
    for line in (
        "run.config.model.hidden_size",
        "config.model",
        "from neobert.config.schema import ModelConfig",
    ):
        assert list(reads_the_section(line)) == [1]
    assert list(reads_the_section("plan.shape.hidden_size; path.model.config")) == []
