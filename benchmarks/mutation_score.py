"""Share of mutants of rules and probes that the tests kill: python benchmarks/mutation_score.py

Takes ten minutes on two cores, longer with more survivors. The tests are read during the run, so the checkout
must not be edited.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measurement import write_measurement

TARGET = 0.99
ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the figure; exit with the scorer's code if a test fails without any mutant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "measurements" / "mutation-score.json")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        ended = score_into(report)
        if report.exists():
            detail = json.loads(report.read_text(encoding="utf-8"))
            value = round(detail.pop("score"), 4)
            write_measurement(asked.out, value, "share of mutants killed", TARGET, detail)
    return ended


def score_into(report: Path) -> int:
    command = [sys.executable, "-m", "tests.mutation", "--json", str(report)]
    return subprocess.run(command, check=False, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
