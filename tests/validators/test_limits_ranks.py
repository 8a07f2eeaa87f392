"""Limits on ranks and the links between them: just at them, and just beyond."""

from dataclasses import replace

import pytest

from tests.validators.judging import (
    FACTS,
    found,
    healthy,
    run_of,
    with_facts,
)
from validators.finding import Severity
from validators.rule import RULES, CannotTellError
from validators.rules.distributed import _most_common_value
from validators.rules.gpu_speed import PCIE_LANE_BYTES_PER_S

TWO = run_of("distributed.nproc_per_node=2")


@pytest.mark.parametrize(("field", "limit"), [("distributed_loss", 1e-5), ("distributed_grad_norm", 1e-4)])
def test_ranks_agree_to_the_last_digits_of_fp32(field, limit):
    ones = dict.fromkeys(
        ("distributed_loss", "single_loss", "distributed_grad_norm", "single_grad_norm"), 0.0
    )
    ones |= {
        "single_loss": 1.0,
        "single_grad_norm": 1.0,
        "distributed_loss": 1.0,
        "distributed_grad_norm": 1.0,
    }

    def output(value: float) -> int:
        loss = replace(FACTS.distributed.loss, **(ones | {field: value}))
        return len(found("DST006", TWO, with_facts("distributed", loss=loss)))

    assert output(1 + 0.995 * limit) == output(1 - 0.995 * limit) == 0
    assert output(1 + 1.005 * limit) == output(1 - 1.005 * limit) == 1


def test_a_loss_of_nothing_is_the_same_as_nothing():
    zeros = replace(FACTS.distributed.loss, distributed_loss=0.0, single_loss=0.0)
    assert found("DST006", TWO, with_facts("distributed", loss=zeros)) == []


def test_what_a_lane_carries_is_that_of_its_generation():
    """8/10 coding at 2.5 and 5 GT/s, 128/130 from 8 GT/s on, 242/256 at 64 GT/s; one way, in GB/s."""
    coded = {
        1: 2.5 * 0.8,
        2: 5 * 0.8,
        3: 8 * 128 / 130,
        4: 16 * 128 / 130,
        5: 32 * 128 / 130,
        6: 64 * 242 / 256,
    }
    assert pytest.approx({g: gt / 8 * 1e9 for g, gt in coded.items()}, rel=2e-3) == PCIE_LANE_BYTES_PER_S


@pytest.mark.parametrize(
    "links", [[{"num_nvlinks": 12}, {"num_nvlinks": 4}], [{"num_nvlinks": 4}, {"num_nvlinks": 12}]]
)
def test_the_slowest_link_counts(links):
    """Four NVLinks carry 100 GB/s, and two fifths of them have to arrive."""
    health = healthy(*links)
    for rate, count in ((40e9, 0), (39.9e9, 1)):
        distributed = replace(FACTS.distributed, bus_bytes_per_s=rate)
        facts = replace(FACTS, gpu_health=health, distributed=distributed)
        assert len(found("DST003", TWO, facts)) == count


def test_one_link_that_nobody_described_leaves_all_unknown():
    nothing = {"num_nvlinks": 0, "pcie_generation_max": None, "pcie_width": None}
    with pytest.raises(CannotTellError):
        found("DST003", TWO, replace(FACTS, gpu_health=healthy({}, nothing)))


def test_gpus_that_cannot_reach_each_other_warn():
    facts = replace(with_facts("distributed", has_peer_access=False), gpu_health=healthy({}, {}))
    (one,) = found("DST003", TWO, facts)
    assert one.severity is Severity.WARN


@pytest.mark.parametrize(
    ("output", "usual"), [({0: "a", 1: "b", 2: "b"}, "b"), ({0: "a", 1: "a", 2: "b"}, "a")]
)
def test_most_ranks_are_right(output, usual):
    assert _most_common_value(output) == usual


@pytest.mark.parametrize(
    ("senders", "output"),
    [((), "cannot be attributed to one rank"), ((1,), "the contribution of rank 1 is received incorrectly")],
)
def test_who_sent_what_is_wrong(senders, output):
    wrong = replace(FACTS.distributed.collectives[0], wrong_at=(0,), wrong_from=senders)
    (one,) = found("DST002", TWO, with_facts("distributed", collectives=(wrong,)))
    assert output in one.message


@pytest.mark.parametrize(("missed", "output"), [((), "reported no rank"), ((0,), "reported rank 0")])
def test_the_drill_names_whom_it_missed(missed, output):
    (one,) = found("DST004", TWO, with_facts("distributed", drill_absent=missed))
    assert output in one.message


def test_links_are_judged_between_gpus_only():
    skipped = RULES["DST003"].inapplicable
    assert skipped(TWO, None) == ""
    assert skipped(run_of(), None) == "each node runs one process"
    assert skipped(run_of("distributed.nproc_per_node=2", profile="cpu-demo"), None)
    assert skipped(run_of("distributed.nproc_per_node=2", profile=None), None)
