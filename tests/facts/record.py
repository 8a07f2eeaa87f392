"""Record what the probes say of this machine, for tests to judge anywhere.

    python -m tests.facts.record NAME PROFILE [--level LEVELS] [KEY=VALUE ...]

writes NAME.json beside this file, or into --folder: the facts, and how they were judged. Names of hosts and
folders are replaced. What is being measured goes to standard error.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.preflight.examination import examine
from launcher.preflight.levels import parse_levels, probes_for
from launcher.probes.collect import collect
from launcher.probes.probe import Subject
from profiles.registry import ResolvedRun, resolve_run
from validators.core import groups_needed
from validators.facts import Facts
from validators.facts_io import facts_to_json
from validators.finding import Level
from validators.planning import plan_run

HERE = Path(__file__).parent
LEVELS = "host,gpu,distributed,data"
PLACES = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+(?=[\w.+-])")


def main(arguments: list[str] | None = None) -> None:
    """Probe, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("profile")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--level", default=LEVELS)
    parser.add_argument("--folder", type=Path, default=HERE)
    requested = parser.parse_intermixed_args(arguments)
    run, levels = resolve_run(requested.profile, overrides=requested.overrides), parse_levels(requested.level)
    examination = examine(run, levels, facts=probe(run, levels), folder=None)
    recorded = {
        "profile": requested.profile,
        "overrides": requested.overrides,
        "digest": run.digest,
        "levels": [str(level) for level in examination.levels],
        "verdict": examination.report.verdict,
        "statuses": {check.id: str(check.status) for check in examination.report.checks},
        "durations_s": {probe.name: probe.duration_s for probe in examination.facts.probes},
        "facts": without_names(json.loads(facts_to_json(examination.facts))),
    }
    path = requested.folder / f"{requested.name}.json"
    path.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for check in examination.report.checks:
        print(check.id, check.status, check.message)
    print(examination.report.verdict, [asdict(probe) for probe in examination.facts.probes])


def probe(run: ResolvedRun, levels: tuple[Level, ...]) -> Facts:
    """Measure what the levels need, and say what and since when."""
    probes = probes_for(levels, groups_needed(run, plan_run(run), levels))
    output_dir = Path(run.config.trainer.output_dir).expanduser().absolute()
    requires_gpu = run.profile is not None and run.profile.requires.device == "cuda"
    subject = Subject(run.config, output_dir, Path.cwd(), None, requires_gpu)
    return collect(probes, subject, progress(time.monotonic()))


def progress(started: float) -> Callable[[str], None]:
    """Return what says a line behind the seconds since the start."""
    return lambda text: print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr, flush=True)


def without_names(value: Any, key: str = "") -> Any:
    """The same with hosts, folders and variables of the recording machine taken out."""
    if key == "environment":
        return {}
    if key == "measured_for":  # as the overrides: what was asked for, and what a replay is held to
        return value
    if key in ("hostname", "sha") and value:
        return "recorded"
    if isinstance(value, dict):
        return {name: without_names(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [without_names(item) for item in value]
    return PLACES.sub("/recorded/", value) if isinstance(value, str) else value


if __name__ == "__main__":
    main()
