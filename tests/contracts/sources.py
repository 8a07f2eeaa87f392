"""Modules of the project as syntax trees, parsed once for all tests of their text."""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("launcher", "neobert", "profiles", "validators")


def nodes_of_packages(packages: Sequence[str] = PACKAGES) -> Iterator[tuple[str, list[ast.AST]]]:
    """Yield each module below these folders, relative to the project, and all nodes of its tree."""
    for package in packages:
        for file in sorted((ROOT / package).rglob("*.py")):
            yield str(file.relative_to(ROOT)), _nodes(file)


@cache
def _nodes(file: Path) -> list[ast.AST]:
    return nodes_of(file.read_text("utf-8"))


def nodes_of(source: str) -> list[ast.AST]:
    """Return all nodes of the tree of a source, parents before children."""
    return [*ast.walk(ast.parse(source))]
