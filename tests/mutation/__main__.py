"""The share of mutants that some test kills: `python -m tests.mutation`.

Each comparison, threshold, boolean and condition of the rules, of what turns findings into a verdict, and of
the probes' measurements is edited in turn; the tests that can see the edit must fail. Edits that change no
behaviour stand in `equivalent.yaml` with their reasons, and are counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import yaml

from tests.mutation.mutants import Mutant
from tests.mutation.scorer import CANNOT_TELL, Outcome, Scorer
from tests.mutation.targets import ROOT, SUITES, Suite, mutants_in

EQUIVALENT = Path(__file__).with_name("equivalent.yaml")
QUIET = ("-s", "-q", "-p", "no:cacheprovider", "-o", "tmp_path_retention_policy=none")
NAMED = ("file", "function", "statement", "before", "after")
WANTED = 0.99
SEED = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Score every suite; 1 where the score is too low or a listed mutant is not what it is said to be.

    3, and no score, where a test fails that no edit has reached.
    """
    asked = _parser().parse_args(arguments)
    os.chdir(ROOT)
    started = time.monotonic()
    outcomes = []
    for suite in SUITES:
        mutants = _chosen(suite, asked)
        if mutants:
            scorer = Scorer(suite, mutants, jobs=asked.jobs)
            ended = _run(suite, scorer)
            if ended:
                trouble = scorer.trouble or f"pytest ended with {int(ended)}"
                print(f"{suite.name}: no score can be given: {trouble}", file=sys.stderr)
                return CANNOT_TELL
            outcomes.append(scorer.outcome)
    is_whole = not (asked.sample or asked.only or asked.again)
    report = report_of(outcomes, time.monotonic() - started, is_whole=is_whole)
    _print(report)
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(report["score"] < WANTED or bool(report["stale"]))


def _run(suite: Suite, scorer: Scorer) -> int:
    """Run pytest in silence, in a folder of its own: other sessions of this user clear the common one."""
    with (
        tempfile.TemporaryDirectory(prefix="mutation-") as folder,
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
    ):
        return pytest.main([*QUIET, f"--basetemp={folder}/pytest", *suite.tests], plugins=[scorer])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument(
        "--sample", type=int, default=0, help="as many mutants of each suite, always the same"
    )
    parser.add_argument("--only", default="", help="files whose path has this in it")
    parser.add_argument("--again", type=Path, help="only what survived in an earlier report")
    return parser


def _chosen(suite: Suite, asked: argparse.Namespace) -> list[Mutant]:
    mutants = [mutant for mutant in mutants_in(suite) if asked.only in mutant.file.as_posix()]
    if asked.again:
        survivors = json.loads(asked.again.read_text(encoding="utf-8"))["survivors"]
        names = {tuple(survivor[part] for part in NAMED) for survivor in survivors}
        mutants = [mutant for mutant in mutants if mutant.name in names]
    if 0 < asked.sample < len(mutants):
        mutants = random.Random(SEED).sample(mutants, asked.sample)
    return mutants


def report_of(outcomes: Sequence[Outcome], duration_s: float, *, is_whole: bool) -> dict[str, Any]:
    """Count. A mutant that is listed as equivalent and is killed, or that is no more, is stale."""
    listed = {tuple(entry[name] for name in NAMED): entry["reason"] for entry in _listed()}
    killed = [mutant for outcome in outcomes for mutant in outcome.killed]
    survived = [mutant for outcome in outcomes for mutant in outcome.survived]
    alive = {mutant.name for mutant in survived}
    wrongly = set(listed) & {mutant.name for mutant in killed}
    stale = wrongly | (set(listed) - alive if is_whole else set())
    standing = [mutant for mutant in survived if mutant.name not in listed]
    judged = len(killed) + len(standing)
    return {
        "score": len(killed) / judged if judged else 0.0,
        "killed": len(killed),
        "judged": judged,
        "equivalent": len(survived) - len(standing),
        "score_with_equivalent": len(killed) / max(1, len(killed) + len(survived)),
        "not_loadable": sum(len(outcome.stillborn) for outcome in outcomes),
        "tests": sum(outcome.num_tests for outcome in outcomes),
        "duration_s": round(duration_s, 1),
        "survivors": [
            dict(zip(NAMED, mutant.name, strict=True)) | {"line": mutant.line} for mutant in standing
        ],
        "stale": sorted(" | ".join(name) for name in stale),
    }


def _listed() -> list[dict[str, str]]:
    return yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")) or []


def _print(report: dict[str, Any]) -> None:
    for one in report["survivors"]:
        place = f"{one['file']}:{one['line']}: {one['function']}".rstrip(": ")
        print(f"survived  {place}: {one['before']}  ->  {one['after']}")
    for name in report["stale"]:
        print(f"stale in {EQUIVALENT.name}  {name}")
    print(
        f"mutants killed {report['killed']}/{report['judged']} = {report['score']:.3f} (at least {WANTED:g} "
        f"is wanted), {report['equivalent']} equivalent ones apart, {report['duration_s']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
