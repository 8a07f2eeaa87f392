"""`bench speedrun`: train a recipe once per seed under a rule file, and record the time to its target."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from launcher.commands import sweep, train
from launcher.commands.selection import Selection, hide_gpus_from_cpu_run
from launcher.commands.sweep_checks import check_points
from launcher.commands.sweep_results import Candidate, predictions_with_totals
from launcher.commands.sweep_runs import train_point
from launcher.io.files import make_folder, write_text
from launcher.probes.git import UNTRACKED
from launcher.process.trainer_process import Topology
from launcher.run.speedrun_rules import RuleFile, read_rules, require_same_conditions, verify_sources
from launcher.run.sweep_points import Axis, expand
from launcher.rundir.directory import run_directory
from launcher.rundir.records import Record, get_list, iterate_lines, read_json, read_metrics
from launcher.terminal import console
from launcher.terminal.values import UNKNOWN, result_json, show_count
from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK, ProjectError
from neobert.metric_names import EVAL_LOSS, TOKENS
from neobert.printable import printable
from neobert.receipt import FILE_NAME as RECEIPT
from neobert.receipt import SEAL, read_receipt
from neobert.runfiles.json_values import parse_object
from neobert.runfiles.run_dir import MANIFEST, METRICS, heartbeat_path
from profiles.registry import ResolvedRun

RECORD = "record.json"

SCHEMA_VERSION = 1
SHARED = ("commit", "code_version", "code_diff_sha256", "torch", "hardware")
"""Fields that must have equal values in all runs of a valid record."""
HEAD = "| name | hardware | runs | held-out loss | p | s from command | s from first step | tokens | code |"
RULE = "|---|---|---|---|---|---|---|---|---|"


def run(rules: Path, output_format: str, *, dry_run: bool) -> int:
    """Check rules, sources and every seed, train the seeds that are not finished, and write the record.

    `dry_run` only checks. Returns 0 for a valid record, 1 for an invalid one (such as a missed target), or
    the code of a failed check or run.
    """
    file = read_rules(rules)
    verify_sources(file)
    selection = Selection(file.rules.profile, () if file.run is None else (file.run,), file.overrides)
    resolved = selection.require()
    require_same_conditions(file, resolved)
    hide_gpus_from_cpu_run(resolved)
    base = run_directory(resolved)
    points = expand([Axis("seed", tuple(map(str, file.rules.seeds)))])
    candidates = [sweep.make_candidate(selection, point, base) for point in points]
    request = train.TrainRequest(selection, Topology(), dry_run, strict=False)
    code = check_points(request, candidates, output_format, predictions_with_totals(candidates))
    if code != EXIT_OK or dry_run:
        return code
    for candidate in candidates:
        console.log(printable(f"seed {candidate.run.config.seed} of {file.rules.name}"))
        if (code := train_point(replace(request, selection=candidate.selection), output_format)) != EXIT_OK:
            console.log("no record was written: a run did not finish; run the same command to continue")
            return code
    return _write_record(file, candidates, base, output_format)


def _write_record(file: RuleFile, candidates: list[Candidate], base: Path, output_format: str) -> int:
    folders = {candidate.run.config.seed: candidate.folder for candidate in candidates}
    record = _make_record(file, candidates[0].run, folders)
    make_folder(base)
    write_text(base / RECORD, result_json(record) + "\n")
    if output_format == "json":
        console.write(result_json(record))
    else:
        verdict = f"record: mean loss {record['mean_loss']:.4f}, target {record['target_loss']:g}, "
        verdict += f"p {record['p_value']:.2g}"
        reasons = [f"not a valid record: {reason}" for reason in record["objections"]]
        console.write("\n".join(map(printable, [verdict, *reasons])))
        console.write("\n".join([HEAD, RULE, markdown_row(record)]))
        console.write(printable(f"written to {base / RECORD}"))
    return EXIT_OK if record["counts"] else EXIT_CHECK_FAILED


def _read_seed_result(run: ResolvedRun, folder: Path, seed: int) -> dict[str, Any]:
    """Return the last evaluation and the times from one seed's finished run.

    Times are in seconds and exclude evaluations. `seconds_from_first_step` starts at the first step: it
    includes compilation, and excludes pauses for logging and checkpoints. `seconds_from_command` is None for
    a run of several launches.
    Raises ProjectError if the run has no evaluation at its last step, or no receipt.
    """
    lines, manifest = read_metrics(folder / METRICS), read_json(folder / MANIFEST)
    last = lines[-1] if lines else {}
    if last.get(EVAL_LOSS) is None:
        message = "the run has no evaluation at its last step"
        hint = "add dataset.validation_split under `fixed` in the rule file"
        raise ProjectError("speedrun", message, hint, str(folder))
    receipt = read_receipt(folder / RECEIPT)
    return {
        "seed": seed,
        "loss": last[EVAL_LOSS],
        "step": last["step"],
        "tokens": last.get(TOKENS),
        "seconds_from_command": _time_since_command_s(folder, lines, manifest),
        "seconds_from_first_step": _total_step_time_s(lines),
        "launches": 1 + len(get_list(manifest, "earlier")),
        "restarts": len(get_list(manifest, "restarts")),
        "config_digest": receipt.config_digest,
        "receipt_sha256": read_json(folder / RECEIPT)[SEAL],
        "is_guarded": not receipt.unguarded,
        "code_version": manifest.get("code_version"),
        "commit": manifest.get("git_sha"),
        "code_diff_sha256": _code_diff_sha256(folder, manifest),
        "torch": receipt.versions.get("torch"),
        "hardware": _describe_hardware(run, folder),
    }


def _code_diff_sha256(folder: Path, manifest: Record) -> str:
    """Return the SHA-256 of a run's saved uncommitted changes; empty if there are none.

    The receipt's digest includes the names of untracked files, such as the runs of earlier seeds.
    """
    name = manifest.get("diff")
    path = folder / name if isinstance(name, str) else None
    if path is None or not path.is_file():
        return ""
    lines = path.read_bytes().splitlines(keepends=True)
    changes = b"".join(line for line in lines if not line.startswith(UNTRACKED))
    return hashlib.sha256(changes).hexdigest() if changes else ""


def _total_step_time_s(lines: Sequence[Record]) -> float:
    """Return the total time of all steps in seconds; each line has the mean since the previous line."""
    total_s, step = 0.0, 0
    for line in lines:
        if "time/step_ms" in line:
            total_s += (line["step"] - step) * line["time/step_ms"] / 1000
            step = line["step"]
    return round(total_s, 3)


def _time_since_command_s(folder: Path, lines: Sequence[Record], manifest: Record) -> float | None:
    """Return the seconds from the command to the end of the last step, without earlier evaluations.

    Returns None for a run of several launches, or if the times were not recorded.
    """
    begun_s = manifest.get("begun_boot_s")
    beats = filter(None, map(parse_object, iterate_lines(heartbeat_path(folder, 0))))
    ended_s = next((beat.get("boot_s") for beat in beats if beat.get("step") == lines[-1]["step"]), None)
    if get_list(manifest, "earlier") or begun_s is None or ended_s is None:
        return None
    evaluating_ms = sum(line.get("time/evaluation_ms") or 0.0 for line in lines[:-1])
    return round(float(ended_s) - float(begun_s) - evaluating_ms / 1000, 3)


def _make_record(file: RuleFile, run: ResolvedRun, folders: Mapping[int, Path]) -> dict[str, Any]:
    """Return the record for all seeds' runs.

    It is valid (`counts`) if a t-test shows that the mean loss is below the target, no run was launched with
    --unguarded, and all runs used the same code on the same hardware.
    """
    runs = [_read_seed_result(run, folder, seed) for seed, folder in folders.items()]
    losses, rules = [each["loss"] for each in runs], file.rules
    p_value = p_value_below(losses, rules.target_loss)
    same = {name: _shared_value(runs, name) for name in SHARED}
    objections = list(_find_objections(runs, same, p_value, rules.significance))
    return {
        "kind": "neobert-speedrun",
        "schema_version": SCHEMA_VERSION,
        "name": rules.name,
        "date_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": not objections,
        "objections": objections,
        "rules_sha256": file.digest,
        "recipe": rules.run or rules.profile,
        "target_loss": rules.target_loss,
        "significance": rules.significance,
        "mean_loss": fmean(losses),
        "stdev_loss": stdev(losses),
        "p_value": p_value,
        "seconds_from_command": _mean_over_runs(runs, "seconds_from_command"),
        "seconds_from_first_step": _mean_over_runs(runs, "seconds_from_first_step"),
        "tokens": _mean_over_runs(runs, "tokens"),
        **same,
        "runs": runs,
    }


def _find_objections(
    runs: Sequence[Mapping[str, Any]], same: Mapping[str, Any], p_value: float, level: float
) -> Iterator[str]:
    """Yield the reasons why a record is not valid."""
    if p_value >= level:
        yield f"the mean loss is not significantly below the target: p {p_value:.2g} (limit {level:g})"
    if differing := [name for name, value in same.items() if value is None]:
        yield f"the runs differ in {', '.join(differing)}"
    if unguarded := [str(each["seed"]) for each in runs if not each["is_guarded"]]:
        yield f"failed checks were ignored (--unguarded) for seed {', '.join(unguarded)}"


def _shared_value(runs: Sequence[Mapping[str, Any]], name: str) -> Any:
    """Return the value of a field that all runs share, or None if they differ."""
    values = {each[name] for each in runs}
    return values.pop() if len(values) == 1 else None


def _mean_over_runs(runs: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean of a field over all runs, or None if a run lacks it."""
    values = [each[name] for each in runs]
    return None if None in values else fmean(values)


def _describe_hardware(run: ResolvedRun, folder: Path) -> str:
    """Describe the devices of a run from its preflight facts, as `8 x NAME` or the cores of the CPU."""
    count = run.config.distributed.nproc_per_node
    gpus = get_list(read_json(folder / "facts.json"), "gpus")[:count]
    if run.device == "cpu" or not gpus:
        return f"CPU, {os.cpu_count()} cores"
    return f"{len(gpus)} x {gpus[0].get('name')}"


def markdown_row(record: Mapping[str, Any]) -> str:
    """Return the record as a row of a Markdown table under `HEAD`."""
    cells = [
        record["name"],
        str(record["hardware"] or UNKNOWN),
        str(len(record["runs"])),
        f"{record['mean_loss']:.4f} +- {record['stdev_loss']:.4f}",
        f"{record['p_value']:.2g}",
        _seconds_text(record["seconds_from_command"]),
        _seconds_text(record["seconds_from_first_step"]),
        show_count(record["tokens"]),
        str(record["code_version"] or UNKNOWN),
    ]
    return "| " + " | ".join(printable(cell).replace("|", "/") for cell in cells) + " |"


def _seconds_text(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}"


def p_value_below(values: Sequence[float], limit: float) -> float:
    """Return the one-sided p-value of a t-test that the mean of the values is below `limit`.

    Needs at least two independent, normally distributed values. If all values are equal, the p-value is 0
    below the limit, and 1 at or above it.
    """
    distance, spread = fmean(values) - limit, stdev(values)
    if spread == 0.0:
        return 0.0 if distance < 0 else 1.0
    return student_t_cdf(distance * math.sqrt(len(values)) / spread, len(values) - 1)


def student_t_cdf(t: float, degrees: int) -> float:
    """Return P(T <= t) of Student's t-distribution with an integer number of degrees of freedom, at least 1.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan2(t, math.sqrt(degrees))
    is_odd = degrees % 2
    term = math.cos(angle) ** is_odd
    total = 0.0
    for power in range(is_odd, degrees - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * math.cos(angle) ** 2
    within = math.sin(angle) * total
    return 0.5 + 0.5 * (2 / math.pi * (angle + within) if is_odd else within)
