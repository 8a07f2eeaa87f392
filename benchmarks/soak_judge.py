"""Comparison of a run that was killed repeatedly with an undisturbed one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from soak_trainer import GIVEN

from launcher.rundir.records import parse_lines, read_json, read_metrics
from neobert.errors import ProjectError
from neobert.runfiles.checkpoint.folders import find

Line = dict[str, Any]

WINDOW = 10
LOSS = "train/loss"
# Metrics that depend on data and schedule only, and so have no kernel noise.
EXACT = ("train/tokens_total", "train/learning_rate", "train/epoch")
LEFT_OVERS = (".tmp-*", ".trash-*", ".corrupt-*")


def judge(disturbed: Path, undisturbed: Path, strikes: list[Line], logging_steps: int) -> dict[str, Any]:
    """Compare two runs over the steps that both have done; `faults` describes each violation."""
    ours, theirs = read_metrics(disturbed / "metrics.jsonl"), read_metrics(undisturbed / "metrics.jsonl")
    last_step = min((lines[-1]["step"] for lines in (ours, theirs) if lines), default=0)
    losses = compare_losses(ours, theirs, last_step)
    sessions = sessions_of(disturbed)
    lost = lost_steps(sessions, strikes)
    faults = [
        *history_faults(ours, logging_steps),
        *exact_faults(ours, theirs, last_step),
        *data_faults(disturbed, undisturbed),
        *left_overs(disturbed),
        *(f"to {each['kind']} lost {each['lost_steps']} steps" for each in lost if is_bad(each)),
    ]
    return {
        "last_step": last_step,
        **losses,
        "sessions_that_trained": len(sessions),
        "steps_done_again": sum(max(0, each["lost_steps"] or 0) for each in lost),
        "strikes": lost,
        "faults": faults,
    }


def is_bad(strike: Line) -> bool:
    """Return whether a run that was stopped, and not killed, had to repeat a step."""
    return strike["kind"] != "kill the trainer" and (strike["lost_steps"] or 0) > 0


def compare_losses(ours: list[Line], theirs: list[Line], last_step: int) -> dict[str, Any]:
    """Return relative differences: of the smoothed curve, of single lines, of the evaluations."""
    pairs = common(ours, theirs, LOSS, last_step)
    single = [relative(*pair[1:]) for pair in pairs]
    smooth = [
        relative(*(statistics.fmean(pair[side] for pair in pairs[end - WINDOW : end]) for side in (1, 2)))
        for end in range(WINDOW, len(pairs) + 1)
    ]
    evaluations = [relative(*pair[1:]) for pair in common(ours, theirs, "eval/loss", last_step)]
    return {
        "window": WINDOW,
        "lines_compared": len(pairs),
        "largest_smoothed": max(smooth, default=None),
        "largest_single": max(single, default=None),
        "largest_eval": max(evaluations, default=None),
        "first_unequal_step": next((step for step, a, b in pairs if a != b), None),
        "losses": dict(zip(("step", "disturbed", "undisturbed"), zip(*pairs, strict=True), strict=False)),
    }


def common(ours: list[Line], theirs: list[Line], name: str, last_step: int) -> list[tuple[int, float, float]]:
    other = {line["step"]: line[name] for line in theirs if line.get(name) is not None}
    return [
        (line["step"], line[name], other[line["step"]])
        for line in ours
        if line.get(name) is not None and line["step"] <= last_step and line["step"] in other
    ]


def relative(a: float, b: float) -> float:
    return abs(a - b) / abs(b)


def history_faults(lines: list[Line], logging_steps: int) -> list[str]:
    """Return the inconsistencies in the metrics of a run."""
    steps = [line["step"] for line in lines]
    trained = [line["step"] for line in lines if LOSS in line]
    wanted = list(range(logging_steps, (trained or [0])[-1] + 1, logging_steps))
    complaints = {
        "no metrics were written": not trained,
        "metrics: a step occurs twice, or out of order": steps != sorted(set(steps)),
        f"metrics: missing {sorted(set(wanted) - set(trained))[:9]}": not set(wanted) <= set(trained),
    }
    return [complaint for complaint, holds in complaints.items() if holds]


def exact_faults(ours: list[Line], theirs: list[Line], last_step: int) -> list[str]:
    return [
        f"{name} differs first at step {step}: {a} and {b}"
        for name in EXACT
        for step, a, b in [pair for pair in common(ours, theirs, name, last_step) if pair[1] != pair[2]][:1]
    ]


def given_lines(run_dir: Path) -> list[Line]:
    """Return the recorded input digests of a run's steps."""
    return list(parse_lines((run_dir / GIVEN).read_text(encoding="utf-8")))


def data_faults(disturbed: Path, undisturbed: Path) -> list[str]:
    """Compare the input of every step of every session with that of the other run's step."""
    wanted = {line["step"]: line["digest"] for line in given_lines(undisturbed)}
    given = given_lines(disturbed)
    others = [line["step"] for line in given if wanted.get(line["step"], line["digest"]) != line["digest"]]
    done = {line["step"] for line in given}
    skipped = sorted(set(range(1, max(done, default=0) + 1)) - done)
    return [
        *([f"other samples or masks in steps {sorted(set(others))[:9]}"] if others else []),
        *([f"steps that no session did: {skipped[:9]}"] if skipped else []),
    ]


def sessions_of(run_dir: Path) -> list[Line]:
    """List the sessions that trained: process, first and last step."""
    sessions: dict[int, Line] = {}
    for line in given_lines(run_dir):
        session = sessions.setdefault(line["pid"], {"pid": line["pid"], "first": line["step"]})
        session["last"] = line["step"]
    return list(sessions.values())


def lost_steps(sessions: list[Line], strikes: list[Line]) -> list[Line]:
    """Return the number of repeated steps for every fault; None if its session had done none."""
    lost = {before["pid"]: before["last"] + 1 - after["first"] for before, after in pairwise(sessions)}
    return [{**strike, "lost_steps": lost.get(strike["pid"])} for strike in strikes]


def left_overs(run_dir: Path) -> list[str]:
    """Return the faults of the checkpoint folder at the end."""
    root = run_dir / "checkpoints"
    left = [path.name for pattern in LEFT_OVERS for path in root.glob(pattern)]
    try:
        found = find(root, "auto")
    except ProjectError as error:
        return [str(error)]
    return [
        *([f"left over in the checkpoint folder: {left}"] if left else []),
        *([] if found is not None else ["no checkpoint verifies"]),
    ]


def noise(undisturbed: Sequence[Path]) -> Line | None:
    """Return the difference of two undisturbed runs; None if there is only one."""
    curves = [lines for lines in (read_metrics(each / "metrics.jsonl") for each in undisturbed) if lines]
    if len(curves) < 2:
        return None
    found = compare_losses(curves[0], curves[1], min(lines[-1]["step"] for lines in curves))
    return {name: each for name, each in found.items() if name != "losses"}


def restarts(run_dir: Path) -> int:
    """Return the number of restarts by the watchdog, over all launches."""
    manifest = read_json(run_dir / "manifest.json")
    return sum(len(launch.get("restarts", [])) for launch in (manifest, *manifest.get("earlier", [])))
