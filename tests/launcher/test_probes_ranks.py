"""What ranks said, put together: worst case, senders, absence. The ranks themselves are in tests/faults."""

import json
import math
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from launcher.probes import ranks
from launcher.probes.probe import IncompleteError, Subject, TimedOutError

LOSS = {
    "distributed_loss": 5.0,
    "single_loss": 5.0,
    "distributed_grad_norm": 1.0,
    "single_grad_norm": 1.0,
}


def answer(rank: int, **more: Any) -> dict[str, Any]:
    """What a rank of two leaves behind."""
    sums = {
        "operation": "all_reduce",
        "dtype": "float32",
        "num_elements": 1,
        "is_right": True,
        "wrong_from": [],
    }
    identity = {
        "rank": rank, "hostname": "node", "device": "cpu", "config_digest": "c", "code_digest": "d",
        "versions": {},
    }  # fmt: skip
    return {
        "identity": identity,
        "absent": [],
        "drill_absent": [] if rank == 1 else [1],
        "drill_s": 2.0,
        "backend": "gloo",
        "collectives": [sums],
        "bus_bytes_per_s": 2e9 - rank,
        "has_peer_access": None,
        "model": {"digests": {"start": f"d{rank}"}, "loss": LOSS},
        "durations_s": {"start": 2.0 + rank, "drill": 5.0 - rank},
    } | more


def test_two_answers_become_one():
    found = ranks.merge_reports({0: answer(0), 1: answer(1)}, 2, ())
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert (found.drill_absent, found.bus_bytes_per_s) == ((1,), 2e9 - 1)
    assert found.parameters[0].digests == ("d0", "d1")
    assert found.collectives[0].wrong_at == ()
    assert found.durations_s == {"start": 3.0, "drill": 5.0}


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([LOSS, LOSS | {"distributed_loss": 5.1}], 5.1),
        ([LOSS | {"distributed_loss": 5.1}, LOSS], 5.1),
        ([LOSS | {"distributed_loss": math.nan}, LOSS | {"distributed_loss": 9.0}], None),
        ([LOSS | {"distributed_loss": 9.0}, LOSS | {"distributed_loss": math.inf}], None),
    ],
)
def test_the_worst_loss_counts(losses, expected):
    answers = {rank: answer(rank, model={"digests": {}, "loss": loss}) for rank, loss in enumerate(losses)}
    loss = ranks.merge_reports(answers, 2, ()).loss
    assert loss is not None
    assert loss.distributed_loss == expected


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch, configured: Any) -> Any:
    """Stand in for torchrun: leave some files, then end as told."""

    def stand_in(answers: dict[int, Any], stages: dict[int, str], failure: Exception) -> Subject:
        def run(command: Any, timeout_s: float, environment: Any) -> Any:
            folder = Path(command[-1])
            for rank, found in answers.items():
                (folder / f"rank_{rank}.json").write_text(json.dumps(found), encoding="utf-8")
            for rank, stage in stages.items():
                (folder / f"rank_{rank}.stage").write_text(stage, encoding="utf-8")
            if isinstance(failure, TimedOutError):
                raise failure
            return CompletedProcess(command, 1, b"", str(failure).encode())

        monkeypatch.setattr(ranks, "run_command", run)
        return configured({"distributed.nproc_per_node": 2})

    return stand_in


def test_where_each_rank_was_last_seen_is_told(torchrun):
    hung = torchrun({0: answer(0)}, {0: "model", 1: "collectives"}, TimedOutError("no answer within 85 s"))
    with pytest.raises(TimedOutError, match="rank 0 at: model, rank 1 at: collectives"):
        ranks.probe_distributed(hung)
    broken = torchrun({0: answer(0)}, {0: "model"}, IncompleteError("exit 1"))
    with pytest.raises(IncompleteError, match="exit 1; rank 0 at: model, rank 1 at: not started"):
        ranks.probe_distributed(broken)


def test_no_rank_at_all_is_no_absence(torchrun):
    with pytest.raises(IncompleteError, match="not started"):
        ranks.probe_distributed(torchrun({}, {}, IncompleteError("torchrun is broken")))
