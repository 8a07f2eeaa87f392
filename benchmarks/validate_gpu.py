"""Duration and results of `validate-gpu --full` on this machine: DIR/validate-gpu-full.json.

With --resolved-only, only the path that the run takes: DIR/validate-gpu-resolved.json. With --ranks N, also
the checks between N ranks: DIR/validate-gpu-full-Ngpu.json.

python benchmarks/validate_gpu.py --profile h200-prod --output docs/measurements
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measurement import write_measurement

TARGET_FULL_S, TARGET_S = 90.0, 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="h200-prod")
    parser.add_argument("--output", type=Path, default=Path("docs/measurements"))
    parser.add_argument("--resolved-only", action="store_true", help="only the path that the run takes")
    parser.add_argument("--ranks", type=int, default=1, help="processes of the run, one per GPU")
    asked = parser.parse_args()
    full = [] if asked.resolved_only else ["--full"]
    started = time.perf_counter()
    answer = subprocess.run(
        [sys.executable, "-m", "launcher", "validate-gpu", "--profile", asked.profile, *full,
         "--set", f"distributed.nproc_per_node={asked.ranks}", "--output-format", "json"],
        stdout=subprocess.PIPE,
        check=False,
    )  # fmt: skip
    took_s = time.perf_counter() - started
    report = json.loads(answer.stdout)
    write_measurement(
        asked.output / f"{figure(asked)}.json",
        round(took_s, 1),
        "s",
        TARGET_FULL_S if full else TARGET_S,
        detail_of(report),
    )
    print(f"{report['verdict']} in {took_s:.1f} s, mutants {report['mutants']}")
    for path in (report["facts"]["numerics"] or {}).get("paths", ()):
        form = "compiled" if path["is_compiled"] else "eager"
        print(f"{path['kernels']}, {path['attention']}, {form}: {path['durations_s']}")
    return answer.returncode


def figure(asked: argparse.Namespace) -> str:
    ranks = f"-{asked.ranks}gpu" if asked.ranks > 1 else ""
    return f"validate-gpu-{'resolved' if asked.resolved_only else 'full'}{ranks}"


def detail_of(report: dict[str, Any]) -> dict[str, Any]:
    facts = report["facts"]
    return {
        "verdict": report["verdict"],
        "mutants": report["mutants"],
        "checks": {check["id"]: [check["status"], check["message"]] for check in report["checks"]},
        "probes_s": {probe["name"]: probe["duration_s"] for probe in facts["probes"]},
        "devices": facts["devices"],
        "numerics": without_mutants(facts["numerics"]),
        "distributed": facts["distributed"],
    }


def without_mutants(numerics: dict[str, Any] | None) -> dict[str, Any] | None:
    """Keep the names of the planted faults, without their measurements."""
    for path in (numerics or {}).get("paths", ()):
        path["mutants"] = [mutant["name"] for mutant in path["mutants"]]
    return numerics


if __name__ == "__main__":
    sys.exit(main())
