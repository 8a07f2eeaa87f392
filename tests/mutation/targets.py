"""What is mutated, and which tests are asked about it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.mutation.mutants import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
RULES = tuple(path for path in sorted((ROOT / "validators/rules").glob("*.py")) if path.stem != "__init__")
JUDGES = tuple(
    ROOT / "validators" / f"{name}.py"
    for name in (
        "core",
        "cuda_graphs",
        "finding",
        "waivers",
        "numerics_faults",
        "departures",
        "thresholds",
        "planning",
    )
)
PROBES = tuple(ROOT / "neobert/probes/numerics" / f"{name}.py" for name in ("isolation", "parity", "rotary"))
PREFLIGHT = ROOT / "launcher/preflight"
RECEIPTS = tuple(PREFLIGHT / f"{name}.py" for name in ("kept_receipts", "rehearsal_inputs", "reused_checks"))
OVERLAP = (PREFLIGHT / "driver_memory.py",)
DRAWN = "tests/validators/test_false_alarms.py"
"""Hundreds of drawn runs at a time: too slow to be asked about each mutant."""
CODE = re.compile(r"(?<![A-Z])[A-Z]{3}\d{3}(?!\d)")


@dataclass(frozen=True)
class Suite:
    """Files that are judged together, and the tests that know them."""

    name: str
    files: tuple[Path, ...]
    tests: tuple[str, ...]


SUITES = (
    Suite("rules", RULES + JUDGES, ("tests/validators", f"--ignore={DRAWN}")),
    Suite("probes", PROBES, ("tests/probes",)),
    Suite(
        "receipts",
        RECEIPTS,
        (
            "tests/faults/test_kept_receipt.py",
            "tests/faults/test_f06_receipt.py",
            "tests/launcher/test_rehearsal_inputs.py",
            "tests/launcher/test_reused_checks.py",
        ),
    ),
    Suite("overlap", OVERLAP, ("tests/launcher/test_rehearsal.py", "-m", "not e2e")),
)


def mutants_in(suite: Suite) -> Iterator[Mutant]:
    """Every mutant of a suite."""
    for file in suite.files:
        yield from mutants_of(file.relative_to(ROOT))


@cache
def codes_in(file: Path) -> dict[str, frozenset[str]]:
    """By function: the codes of the rules that reach it within the file. The empty name stands for all."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    names = {name: _names(node) for name, node in functions.items()}
    own = {name: _codes(node) for name, node in functions.items()}
    reached: dict[str, frozenset[str]] = {}
    for name in names:
        callers = {name}
        while more := {other for other in names if names[other] & callers} - callers:
            callers |= more
        reached[name] = frozenset(code for caller in callers for code in own[caller])
    return reached | {"": frozenset(code for codes in own.values() for code in codes)}


def _names(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def _codes(node: ast.FunctionDef) -> set[str]:
    texts = (child.value for decorator in node.decorator_list for child in ast.walk(decorator)
             if isinstance(child, ast.Constant) and isinstance(child.value, str))  # fmt: skip
    return {text for text in texts if CODE.fullmatch(text)}
