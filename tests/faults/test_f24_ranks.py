"""F24: a rank that sends a wrong value, has another config or other code, or does not come, is named."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.probes import ranks
from launcher.probes.probe import IncompleteError, Subject
from profiles.registry import resolve_run
from validators.core import judge
from validators.facts import NO_FACTS
from validators.facts_run import DistributedFacts
from validators.finding import CheckResult, Level, Status
from validators.planning import plan_run

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]
ROOT = Path(__file__).parents[2]
RUN = resolve_run("cpu-demo", overrides=["distributed.nproc_per_node=2"])
Judged = dict[str, CheckResult]


@pytest.fixture
def meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[DistributedFacts, Judged]]:
    """Start two ranks with a fault; return what they found and how it is judged."""

    def start(fault: str) -> tuple[DistributedFacts, Judged]:
        monkeypatch.setattr(ranks, "MODULE", "tests.faults.faulty_rank")
        monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        monkeypatch.setenv("FAULT", fault)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        found = ranks.probe_distributed(Subject(RUN.config, tmp_path, tmp_path))
        facts = replace(NO_FACTS, distributed=found)
        _, checks = judge(RUN, plan_run(RUN), facts, (Level.DISTRIBUTED,))
        return found, {check.id: check for check in checks}

    return start


def faults(checks: Judged) -> dict[str, str]:
    return {code: check.message for code, check in checks.items() if check.status is Status.FAIL}


def test_control_two_ranks_that_agree(meet):
    found, checks = meet("none")
    assert {code: check.status for code, check in checks.items()} == {
        "DST001": Status.PASS,
        "DST002": Status.PASS,
        "DST003": Status.SKIP,
        "DST004": Status.PASS,
        "DST005": Status.PASS,
        "DST006": Status.PASS,
    }
    assert (found.backend, found.world_size, found.drill_absent) == ("gloo", 2, (1,))
    assert {case.dtype for case in found.collectives} == {"float32", "bfloat16", "int64"}
    assert [moment.moment for moment in found.parameters] == [
        "start", "after preparation", "after a step", "after a resume",
    ]  # fmt: skip
    assert found.parameters[0].digests != found.parameters[2].digests
    assert found.bus_bytes_per_s is not None


@pytest.mark.parametrize(
    ("fault", "codes", "message"),
    [
        ("wrong_value", {"DST002"}, "the contribution of rank 1 is received incorrectly"),
        ("other_config", {"DST001", "DST005", "DST006"}, "rank 1 has a different config than the run"),
        ("other_code", {"DST001"}, "runs different code from most ranks"),
        ("other_weights", {"DST005"}, "after a resume: the weights of rank 1 differ"),
        ("mean_of_means", {"DST006"}, ""),
    ],
)
def test_what_one_rank_does_otherwise_is_named(meet, fault, codes, message):
    _, checks = meet(fault)
    found = faults(checks)
    assert found.keys() == codes
    assert message in found[min(codes)]


@pytest.mark.parametrize("fault", ["crash", "absent"])
def test_a_rank_that_does_not_come(meet, fault):
    found, checks = meet(fault)
    assert found.absent == (1,)
    assert faults(checks) == {"DST004": "rank 1 did not check in within 25 s"}
    unknown = {code for code, check in checks.items() if check.status is Status.UNKNOWN}
    assert unknown == {"DST002", "DST005", "DST006"}
    assert checks["DST002"].required


def test_ranks_that_fail_name_their_error(meet):
    with pytest.raises(
        IncompleteError, match=r"^torchrun: RuntimeError: no way to talk to others; rank 0 at"
    ):
        meet("fails")
