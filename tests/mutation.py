"""Share of the edits of rules and probes that a test notices: `python -m tests.mutation`.

Each comparison, number, boolean and condition can be edited. A run draws some of the edits, others every day;
a process of its own imports the edited module in place of its file. Edits that change no behaviour are listed
in `equivalent_edits.yaml`, with the reason.
"""

import argparse
import ast
import copy
import importlib.machinery
import os
import random
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from functools import partial
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CORE = (
    "core",
    "finding",
    "waivers",
    "departures",
    "thresholds",
    "planning",
    "cuda_graphs",
    "numerics_faults",
)
RULES = (
    *sorted((ROOT / "validators/rules").glob("[!_]*.py")),
    *(ROOT / f"validators/{name}.py" for name in CORE),
)
PROBES = tuple(ROOT / f"neobert/probes/numerics/{name}.py" for name in ("isolation", "parity", "rotary"))
PREFLIGHT = ROOT / "launcher/preflight"
RECEIPTS = tuple(PREFLIGHT / f"{name}.py" for name in ("kept_receipts", "rehearsal_inputs", "reused_checks"))
OF_RECEIPTS = ("faults/test_kept_receipt", "faults/test_f06_receipt", "launcher/test_rehearsal_inputs")
SUITES = (
    (RULES, ["tests/validators", "--ignore=tests/validators/test_false_alarms.py"]),
    (PROBES, ["tests/probes"]),
    (RECEIPTS, [*(f"tests/{name}.py" for name in OF_RECEIPTS), "tests/launcher/test_reused_checks.py"]),
    ((PREFLIGHT / "driver_memory.py",), ["tests/launcher/test_rehearsal.py", "-m", "not e2e"]),
)
"""Files that are edited, and the tests that know them."""
FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "FAIL": "WARN", "WARN": "FAIL"}
UNJUDGED = {"annotation", "returns", "slice", "format_spec", "type_params"}
"""Fields that only types and people read."""
CODE = re.compile(r"(?<![A-Z])[A-Z]{3}\d{3}(?!\d)")
NOTHING = "yield from ()"
WANTED, LIMIT_S = 0.99, 600
QUIET = ("-x", "-q", "-p", "no:cacheprovider", "-o", "tmp_path_retention_policy=none")


class Edit(NamedTuple):
    """One edit of a syntax tree; `statement` is the first line of its statement."""

    line: int
    statement: str
    before: str
    after: str
    apply: Callable[[], None]


def edits_of(parent: ast.AST, lines: list[str], statement: int = 0) -> Iterator[Edit]:
    """Yield every edit below a node."""
    for field, value in ast.iter_fields(parent):
        if field in UNJUDGED or (isinstance(parent, ast.ClassDef) and field == "decorator_list"):
            continue
        for index, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
                continue
            first = node.lineno if isinstance(node, ast.stmt) else statement
            for new in _edited(parent, field, node):
                of_list = partial(value.__setitem__, index, new) if isinstance(value, list) else None
                apply = of_list or partial(setattr, parent, field, new)
                shown = lines[first - 1].strip(), ast.unparse(node), ast.unparse(new)
                yield Edit(getattr(node, "lineno", first), *shown, apply)
            yield from edits_of(node, lines, first)


def _edited(parent: ast.AST, field: str, node: Any) -> Iterator[ast.AST]:
    """Yield what may take the place of a node."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            flipped = copy.deepcopy(node)
            flipped.ops[index] = FLIPPED[type(operator)]()
            yield flipped
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.Constant) and not isinstance(parent, ast.Expr):
        yield from (ast.Constant(value) for value in _other_values(node.value))
    elif isinstance(node, ast.Name) and isinstance(parent, ast.Call) and node.id in SWAPPED:
        yield ast.Name(SWAPPED[node.id], node.ctx)
    elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Severity" and node.attr in SWAPPED:
        yield ast.Attribute(node.value, SWAPPED[node.attr], node.ctx)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield | ast.YieldFrom):
        yield from ast.parse(NOTHING).body if ast.unparse(node) != NOTHING else ()
    has_test = isinstance(parent, ast.If | ast.IfExp | ast.While | ast.Assert) and field == "test"
    if isinstance(node, ast.Name) and node.id == "TYPE_CHECKING":
        return  # imports for annotations, which no test notices
    if has_test or (isinstance(parent, ast.comprehension) and field == "ifs"):
        is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        yield node.operand if is_not else ast.UnaryOp(ast.Not(), copy.deepcopy(node))


def _other_values(value: object) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, float):
        return [value * 1.01, value * 0.99] if value else [0.01, -0.01]
    return []


def survives(file: Path, number: int | None, tests: list[str]) -> bool:
    """Import the file with one of its edits (None: without), and return whether its tests pass."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # an edit may make a loop endless
    signal.alarm(LIMIT_S)
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    if number is not None:
        list(edits_of(tree, text.splitlines()))[number].apply()
    code = compile(ast.fix_missing_locations(tree), str(file), "exec")
    loader = importlib.machinery.SourceFileLoader
    real = loader.get_code
    loader.get_code = lambda self, name: code if self.path == str(file) else real(self, name)  # type: ignore[method-assign]
    codes = sorted(set(CODE.findall(text)))
    selections = [["-k", " or ".join(codes)], []] if codes else [[]]  # the likely ones first
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        return not any(pytest.main([*QUIET, f"--basetemp={folder}/t", *each, *tests]) for each in selections)


def main() -> int:
    """Return 1 if the score is too low, 3 if a test fails without an edit."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--edits", type=int, default=200, help="number of edits (default: %(default)s)")
    parser.add_argument("--only", default="", help="files whose path has this in it")
    chosen = parser.parse_args()
    os.chdir(ROOT)
    listed = yaml.safe_load(Path(__file__).with_name("equivalent_edits.yaml").read_text(encoding="utf-8"))
    equivalent = {tuple(each[key] for key in ("file", "statement", "before", "after")) for each in listed}
    work, edits, controls = [], [], []
    for files, tests in SUITES:
        known = [file for file in files if chosen.only in str(file)]
        controls += [(file, None, tests) for file in known[:1]]
        for file in known:
            lines = file.read_text(encoding="utf-8").splitlines()
            for number, edit in enumerate(edits_of(ast.parse("\n".join(lines)), lines)):
                if (str(file.relative_to(ROOT)), *edit[1:4]) not in equivalent:
                    work.append((file, number, tests))
                    edits.append(edit)
    drawn = range(len(work))
    if chosen.edits < len(work):
        drawn = sorted(random.Random(datetime.now(UTC).date().toordinal()).sample(drawn, chosen.edits))
    with get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        passed = pool.starmap(survives, controls, chunksize=1)
        for (_, _, tests), is_sound in zip(controls, passed, strict=True):
            if not is_sound:
                print(f"tests fail without an edit: pytest {' '.join(tests)}", file=sys.stderr)
                return 3
        survived = pool.starmap(survives, [work[number] for number in drawn], chunksize=1)
    for number in (number for number, has_survived in zip(drawn, survived, strict=True) if has_survived):
        edit = edits[number]
        print(f"{work[number][0].relative_to(ROOT)}:{edit.line}: {edit.before}  ->  {edit.after}")
    score = 1 - sum(survived) / max(1, len(survived))
    print(f"{len(survived)} of {len(work)} edits: {score:.3f} are noticed by a test (at least {WANTED})")
    return int(score < WANTED)


if __name__ == "__main__":
    sys.exit(main())
