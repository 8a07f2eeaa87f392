"""Limits on GPUs, their health and their pace: just at them, and just beyond."""

from dataclasses import replace

import pytest

from neobert.plan.hardware import CARDS
from tests.validators.judging import (
    FACTS,
    found,
    healthy,
    run_of,
    with_device,
)
from validators.finding import Severity

A100 = next(card for card in CARDS if card.name == "A100")


def test_a_run_without_a_profile_needs_a_gpu_a_process():
    run = run_of("distributed.nproc_per_node=2", profile=None)
    assert [one.message for one in found("GPU001", run)] == ["1 GPU visible (2 needed)"]
    assert found("GPU001", run_of(profile=None)) == []
    (one,) = found("GPU001", run_of("distributed.nnodes=1"), replace(FACTS, gpus=()))
    assert one.message == "0 GPUs visible (1 needed)"


@pytest.mark.parametrize(
    "changes",
    [{"retired_pages": 1, "is_retirement_pending": False},
     {"uncorrected_errors": None, "is_remap_pending": None, "recovery_action": None}],
)  # fmt: skip
def test_what_may_be_a_weak_card_only_warns(changes):
    (one,) = found("GPU003", run_of(), replace(FACTS, gpu_health=healthy(changes)))
    assert one.severity is Severity.WARN


@pytest.mark.parametrize(
    ("share", "burst", "severities"),
    [
        (0.60, 0.75, []),
        (0.60, 0.7499, [Severity.WARN]),
        (0.5999, 0.9, [None]),
        (0.75, 0.0, []),
        (0.7499, 0.0, [Severity.WARN]),
    ],
)
def test_products_of_the_data_sheet(share, burst, severities):
    peak = A100.bf16_flops
    facts = with_device(gemm_flops=share * peak, burst_flops=burst * peak)
    assert [one.severity for one in found("GPU005", run_of(), facts)] == severities


def test_no_device_is_no_slow_one():
    assert found("GPU005", run_of(), replace(FACTS, devices=())) == []


@pytest.mark.parametrize(
    ("rate", "output"),
    [
        (15.76e9, []),
        (15.7e9, ["15.7 of 32 GB/s (at least 50%)"]),
        (11.8e9, ["11.8 of 32 GB/s (at least 50%)"]),
    ],
)
def test_half_of_what_sixteen_lanes_carry(rate, output):
    facts = replace(with_device(host_bytes_per_s=rate), gpu_health=healthy({"pcie_generation_max": 4}))
    messages = [one.message for one in found("GPU006", run_of(), facts)]
    assert [message.partition("reaches ")[2] for message in messages] == output


@pytest.mark.parametrize("changes", [{"pcie_width": None}, {"pcie_generation_max": None}])
def test_a_link_that_nobody_described_is_not_judged(changes):
    facts = replace(with_device(host_bytes_per_s=1.0), gpu_health=healthy(changes))
    assert found("GPU006", run_of(), facts) == []
    assert found("GPU006", run_of(), replace(facts, gpu_health=())) == []


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("GPU005", {"gemm_flops": 1.0, "burst_flops": 0.0}),
        ("GPU006", {"copy_bytes_per_s": 1.0}),
        ("GPU007", {"wrong_answers": 1}),
    ],
)
def test_a_device_has_the_number_that_nvidia_smi_gives_it(rule, fault):
    """CUDA counts the visible devices only: a wrong number sends the wrong card back."""
    second = tuple(replace(gpu, index=2) for gpu in FACTS.gpus or ())
    (shown,) = found(rule, run_of(), replace(with_device(**fault), gpus=second))
    assert shown.message.startswith("GPU 2 (")
    (alone,) = found(rule, run_of(), replace(with_device(**fault), gpus=None))
    assert alone.message.startswith("GPU 0 (")
