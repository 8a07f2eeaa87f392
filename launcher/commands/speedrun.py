"""`bench speedrun`: train a recipe once per seed under a rule file, and record the time to its target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from launcher.commands import sweep, train
from launcher.commands.selection import Selection, keep_to_its_device
from launcher.commands.sweep_checks import check
from launcher.commands.sweep_results import Candidate, listing
from launcher.commands.sweep_runs import train_point
from launcher.io.files import make_folder, write_text
from launcher.process.trainer_process import Topology
from launcher.run.speedrun_record import HEAD, RULE, make_record, row_of
from launcher.run.speedrun_rules import RuleFile, read_rules, refuse_other_conditions, verify_sources
from launcher.run.sweep_points import Axis, expand
from launcher.rundir.directory import run_directory
from launcher.terminal import console
from launcher.terminal.values import result_json
from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK
from neobert.printable import printable

RECORD = "record.json"


def run(rules: Path, output_format: str, *, dry_run: bool) -> int:
    """Check rules, sources and every seed, train the seeds that are not finished, and write the record.

    Returns 0 if the record is valid, 1 if it is not (such as a missed target), or the code of a failed run.
    """
    file = read_rules(rules)
    verify_sources(file)
    selection = Selection(file.rules.profile, () if file.run is None else (file.run,), file.overrides)
    resolved = selection.require()
    refuse_other_conditions(file, resolved)
    keep_to_its_device(resolved)
    base = run_directory(resolved)
    points = expand([Axis("seed", tuple(map(str, file.rules.seeds)))])
    candidates = [sweep.candidate_of(selection, point, base) for point in points]
    request = train.Request(selection, Topology(), dry_run, strict=False)
    code = check(request, candidates, output_format, listing(candidates))
    if code != EXIT_OK or dry_run:
        return code
    for candidate in candidates:
        console.log(printable(f"seed {candidate.run.config.seed} of {file.rules.name}"))
        if (code := train_point(replace(request, selection=candidate.selection), output_format)) != EXIT_OK:
            console.log("no record was written: a run did not finish; run the same command to continue")
            return code
    return _conclude(file, candidates, base, output_format)


def _conclude(file: RuleFile, candidates: list[Candidate], base: Path, output_format: str) -> int:
    folders = {candidate.run.config.seed: candidate.folder for candidate in candidates}
    record = make_record(file, candidates[0].run, folders)
    make_folder(base)
    write_text(base / RECORD, result_json(record) + "\n")
    if output_format == "json":
        console.write(result_json(record))
    else:
        verdict = f"record: mean loss {record['mean_loss']:.4f}, target {record['target_loss']:g}, "
        verdict += f"p {record['p_value']:.2g}"
        reasons = [f"not a valid record: {reason}" for reason in record["objections"]]
        console.write("\n".join(map(printable, [verdict, *reasons])))
        console.write("\n".join([HEAD, RULE, row_of(record)]))
        console.write(printable(f"written to {base / RECORD}"))
    return EXIT_OK if record["counts"] else EXIT_CHECK_FAILED
