"""Results of the tests that need CUDA devices: DIR/gpu-tests.json.

    python benchmarks/gpu_tests.py --output docs/measurements
    python benchmarks/gpu_tests.py --name faults-gpu tests/gpu/test_faults_gpu.py tests/gpu/test_stalls.py

Value: the share of the executed tests that passed. The details list skipped tests with the reason.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from measurement import write_measurement

ROOT = Path(__file__).parents[1]
PASSED, SKIPPED = "passed", "skipped"
TROUBLE = ("failure", "error")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the figure and return pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tests", nargs="*", default=["tests/gpu"])
    parser.add_argument("--name", default="gpu-tests", help="of the JSON file")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "measurements")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        code = subprocess.run([*command, *asked.tests], check=False, cwd=ROOT).returncode
        outcomes = sorted(outcomes_of(report))
    count = Counter(outcome["outcome"] for _, outcome in outcomes)
    num_run = count.total() - count[SKIPPED]
    share = count[PASSED] / num_run if num_run else None
    detail = {"devices": torch.cuda.device_count(), "count": dict(count), "tests": dict(outcomes)}
    write_measurement(asked.output / f"{asked.name}.json", share, "share of tests passed", 1.0, detail)
    return code


def outcomes_of(report: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each test of a JUnit report, and how it ended."""
    for case in ElementTree.parse(report).iter("testcase"):
        troubles = [each for each in case if each.tag in (*TROUBLE, SKIPPED)]
        outcome: dict[str, Any] = {"outcome": PASSED, "seconds": round(float(case.get("time", 0)), 1)}
        if troubles:
            outcome["outcome"] = SKIPPED if troubles[0].tag == SKIPPED else "failed"
            outcome["why"] = troubles[0].get("message", "")[:300]
        yield f"{case.get('classname')}.{case.get('name')}", outcome


if __name__ == "__main__":
    sys.exit(main())
