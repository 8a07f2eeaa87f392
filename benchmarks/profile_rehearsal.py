"""Speed and memory of a profile's rehearsal on the GPU of this machine.

    python benchmarks/profile_rehearsal.py --profile h100-prod --output docs/measurements/h100-throughput.json

The text is CPython's documentation and the tokenizer is trained on it, so that nothing is downloaded; every
other key is the profile's. Value: tokens per second of the rehearsal. A GPU other than the profile's fails
GPU001, which the details state; speed and memory are still measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measurement import write_measurement

OFFLINE = (
    "dataset.name=builtin:python-docs",
    "dataset.config=null",
    "dataset.validation_split=0.02",
    "tokenizer.name=null",
    "tokenizer.revision=null",
    "tokenizer.vocab_size=30522",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--profile", default="h100-prod")
    parser.add_argument("--output", type=Path, default=Path("docs/measurements/h100-throughput.json"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = rehearse(asked.profile, Path(folder))
    found = report["facts"]["rehearsal"]
    if found is None:
        sys.exit(json.dumps(report["facts"]["probes"], indent=1))
    speed = found["speed"]
    write_measurement(asked.output, speed["tokens_per_second"], "tokens/s", None, detail_of(report))
    print({name: speed[name] for name in ("tokens_per_second", "mfu", "step_time_s")}, found["memory"])
    return 0


def rehearse(profile: str, folder: Path) -> dict[str, Any]:
    """Run the preflight's rehearsal; return its report."""
    facts = folder / "facts.json"
    answer = subprocess.run(
        [sys.executable, "-m", "launcher", "preflight", "--profile", profile,
         "--level", "static,host,gpu,rehearsal",
         *(word for key in OFFLINE for word in ("--set", key)),
         "--save-facts", facts, "--output", folder / "report", "--output-format", "json"],
        stdout=subprocess.PIPE,
        check=False,
    )  # fmt: skip
    return {**json.loads(answer.stdout), "facts": json.loads(facts.read_text(encoding="utf-8"))}


def detail_of(report: dict[str, Any]) -> dict[str, Any]:
    rehearsal = report["facts"]["rehearsal"]
    return {
        "verdict": report["verdict"],
        "checks": {check["id"]: [check["status"], check["message"]] for check in report["checks"]},
        "probes_s": {probe["name"]: probe["duration_s"] for probe in report["facts"]["probes"]},
        "attention": rehearsal["attention"],
        **{name: rehearsal[name] for name in ("speed", "memory", "save_s")},
    }


if __name__ == "__main__":
    sys.exit(main())
