"""The share of edits of rules and probes that some test notices: python benchmarks/mutation_score.py

Ten minutes of two cores, longer where much survives. The tests are read while it goes, so it belongs on a
checkout that nobody edits.
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

TARGET = 0.95
ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the figure; without one, where a test fails with nothing edited, end as the scorer does."""
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
