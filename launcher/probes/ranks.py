"""Communication between the ranks of this node, started as the trainer would be."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from launcher.probes.child import failure_error, run_command
from launcher.probes.probe import IncompleteError, Probe, Subject, TimedOutError
from launcher.probes.trials import PYTHON, TIMED, resolved_file
from launcher.process.trainer_process import child_environment
from launcher.rundir.records import read_json
from validators.facts_run import CollectiveFacts, DistributedFacts, LossFacts, ParameterFacts, RankFacts

RANKS_S = 85.0
MARGIN_S = 10.0
TIMEOUT_S = 25.0
MODULE = "neobert.probes.ranks.checks"
FIRST_ERROR = re.compile(r"^Traceback .*\n(?:[ \t].*\n)+(\S.*)", re.MULTILINE)
Answers = Mapping[int, Mapping[str, Any]]


def ranks_probe() -> Probe:
    """Return the probe of communication between the ranks of this node."""
    others = (*TIMED, "imports", "inspection", "numerics")
    return Probe("distributed", probe_distributed, RANKS_S + MARGIN_S, is_heavy=True, after=others)


def probe_distributed(subject: Subject) -> DistributedFacts:
    """Test the communication between the ranks of this node, one per process of the run.

    Raises TimedOutError, or IncompleteError if a report is missing, with the last stage of each rank.
    """
    count = subject.config.distributed.nproc_per_node
    with resolved_file(subject) as resolved:
        failure = _run_torchrun(resolved, count)
        reports = [read_json(resolved.with_name(f"rank_{rank}.json")) for rank in range(count)]
        answers = {rank: report for rank, report in enumerate(reports) if report}
        stages = {rank: _read_last_stage(resolved, rank) for rank in range(count)}
    if isinstance(failure, TimedOutError):
        raise TimedOutError(f"{failure}; {_stages_text(stages)}")
    absent = absent_ranks(answers, count)
    if not answers or (not absent and len(answers) < count):
        raise IncompleteError(f"{failure}; {_stages_text(stages)}")
    return merge_reports(answers, count, absent)


def _run_torchrun(resolved: Path, count: int) -> Exception | None:
    """Run torchrun until it ends; return its error, or None.

    The reports of the ranks are more specific than this error.
    """
    # Without an address, torchrun resolves this node's full name repeatedly, through DNS too.
    here = ("--standalone", "--local-addr", "localhost", "--nproc-per-node", str(count))
    torchrun = (*PYTHON, "torch.distributed.run", *here)
    command = (*torchrun, "-m", MODULE, str(resolved), str(resolved.parent))
    try:
        ended = run_command(command, RANKS_S, child_environment(Path(os.devnull), ranks=count))
    except TimedOutError as failure:
        return failure
    if not ended.returncode:
        return None
    # torchrun ends with a table that does not name the error of the rank.
    error = FIRST_ERROR.search(ended.stderr.decode(errors="replace"))
    return IncompleteError(f"torchrun: {error[1]}") if error else failure_error(command, ended)


def _read_last_stage(resolved: Path, rank: int) -> str:
    path = resolved.with_name(f"rank_{rank}.stage")
    return path.read_text(encoding="utf-8") if path.exists() else "not started"


def _stages_text(stages: Mapping[int, str]) -> str:
    return ", ".join(f"rank {rank} at: {stage}" for rank, stage in stages.items())


def absent_ranks(answers: Answers, count: int) -> tuple[int, ...]:
    """Return the ranks that at least one rank reported as absent, in ascending order."""
    missed = {rank for answer in answers.values() for rank in answer["absent"]}
    return tuple(rank for rank in range(count) if rank in missed)


def merge_reports(answers: Answers, count: int, absent: Sequence[int]) -> DistributedFacts:
    """Combine the reports of the ranks; if ranks are absent, only the others' identities and durations."""
    ranks = tuple(RankFacts(**answers[rank]["identity"]) for rank in sorted(answers))
    facts = DistributedFacts(
        backend="",
        world_size=count,
        patience_s=TIMEOUT_S,
        absent=tuple(absent),
        ranks=ranks,
        durations_s=_longest_durations([answer["durations_s"] for answer in answers.values()]),
    )
    if absent:
        return facts
    ordered = [answers[rank] for rank in range(count)]
    first = ordered[0]
    return replace(
        facts,
        backend=first["backend"],
        drill_absent=_absent_in_all_reports([answer["drill_absent"] for answer in ordered[:-1]]),
        drill_s=round(max(answer["drill_s"] for answer in ordered), 3),
        collectives=_merge_collectives(ordered),
        bus_bytes_per_s=min(answer["bus_bytes_per_s"] for answer in ordered),
        has_peer_access=first["has_peer_access"],
        parameters=_merge_parameters([answer["model"]["digests"] for answer in ordered]),
        loss=_worst_loss([answer["model"]["loss"] for answer in ordered]),
    )


def _longest_durations(durations: Sequence[Mapping[str, float]]) -> dict[str, float]:
    stages = dict.fromkeys(stage for each in durations for stage in each)
    return {stage: max(each.get(stage, 0.0) for each in durations) for stage in stages}


def _absent_in_all_reports(named: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sorted(set(named[0]).intersection(*named[1:]))) if named else ()


def _merge_collectives(ordered: Sequence[Mapping[str, Any]]) -> tuple[CollectiveFacts, ...]:
    cases = zip(*(answer["collectives"] for answer in ordered), strict=True)
    return tuple(_merge_collective(case) for case in cases)


def _merge_collective(case: Sequence[Mapping[str, Any]]) -> CollectiveFacts:
    senders = {sender for seen in case for sender in seen["wrong_from"]}
    return CollectiveFacts(
        operation=case[0]["operation"],
        dtype=case[0]["dtype"],
        num_elements=case[0]["num_elements"],
        wrong_at=tuple(rank for rank, seen in enumerate(case) if not seen["is_right"]),
        wrong_from=tuple(sorted(senders)),
    )


def _merge_parameters(digests: Sequence[Mapping[str, str]]) -> tuple[ParameterFacts, ...]:
    return tuple(
        ParameterFacts(moment=moment, digests=tuple(each[moment] for each in digests))
        for moment in digests[0]
    )


def _worst_loss(losses: Sequence[Mapping[str, float]]) -> LossFacts:
    """Return the losses of the rank with the largest difference; a non-finite loss counts as largest."""
    worst = max(losses, key=_loss_difference)
    return LossFacts(**{name: value if isfinite(value) else None for name, value in worst.items()})


def _loss_difference(loss: Mapping[str, float]) -> float:
    if not all(map(isfinite, loss.values())):
        return inf
    return max(
        abs(loss["distributed_loss"] - loss["single_loss"]),
        abs(loss["distributed_grad_norm"] - loss["single_grad_norm"]),
    )
