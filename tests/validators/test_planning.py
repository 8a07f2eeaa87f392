"""Which device a run is planned for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.registry import Requirements, resolve_run
from tests.validators.judging import FACTS
from validators.planning import assumptions_of


def run_with(**requires):
    run = resolve_run("a100-prod")
    assert run.profile is not None
    return replace(run, profile=replace(run.profile, requires=Requirements(**requires)))


@pytest.mark.parametrize(
    ("requires", "device", "memory_mib"),
    [
        ({"gpu": "H100", "gpu_memory_gib": 79.0}, "H100", 79 * 1024),
        ({"gpu": "H200"}, "H200", 140 * 1024),
        ({"gpu_memory_gib": 15.0}, "A100", 15 * 1024),
        ({}, "A100", None),
        ({"device": "cpu", "num_gpus": 0}, "CPU", None),
    ],
)
def test_the_profile_says_what_to_plan_for(requires, device, memory_mib):
    assumptions = assumptions_of(run_with(**requires))
    assert (assumptions.device_name, assumptions.device_memory_mib) == (device, memory_mib)
    assert assumptions.mfu == 0.35


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.kernel_backend=torch", "peak 47% (h200-prod states this MFU for other kernels)"),
        ("trainer.torch_compile=false", "peak 47% (h200-prod states this MFU for other kernels)"),
        ("distributed.nproc_per_node=4", "peak 47% (h200-prod states this MFU for 1 x H200, not 4)"),
        ("trainer.max_steps=5", "peak 47%"),
    ],
)
def test_what_the_expectation_was_not_made_for_is_said(override, said):
    assert assumptions_of(resolve_run("h200-prod", [], [override])).source.endswith(said)


@pytest.mark.parametrize(
    ("requires", "found", "device", "memory_mib"),
    [
        (None, (), "CPU", None),
        (None, ("NVIDIA H200", 143_771), "H200", 143_771),
        (None, ("Tesla K80", 11_441), "CPU", None),
        ({}, ("NVIDIA H200", 143_771), "H200", 143_771),
        ({}, ("Tesla K80", 11_441), "A100", None),
        ({"gpu": "H100"}, ("NVIDIA H200", 143_771), "H100", 80 * 1024),
        ({"device": "cpu", "num_gpus": 0}, ("NVIDIA H200", 143_771), "CPU", None),
    ],
)
def test_what_names_no_gpu_is_planned_for_the_one_that_is_there(requires, found, device, memory_mib):
    run = resolve_run(None) if requires is None else run_with(**requires)
    name, memory = found or ("", 0)
    assert FACTS.gpus is not None
    gpus = [replace(FACTS.gpus[0], name=name, memory_total_mib=memory)] if found else []
    assumptions = assumptions_of(run, gpus)
    assert (assumptions.device_name, assumptions.device_memory_mib) == (device, memory_mib)
