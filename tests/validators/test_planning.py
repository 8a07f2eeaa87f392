"""Which device a run is planned for."""

from dataclasses import replace

import pytest

from profiles.registry import Requirements, resolve_run
from tests.refusals import refusal_of
from tests.validators.judging import FACTS
from validators.planning import plan_assumptions, plan_run


def run_with(**requires):
    run = resolve_run("a100-prod")
    assert run.profile is not None
    return replace(run, profile=run.profile._replace(requires=Requirements(**requires)))


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
    assumptions = plan_assumptions(run_with(**requires))
    assert (assumptions.device_name, assumptions.device_memory_mib) == (device, memory_mib)
    assert assumptions.mfu == 0.42


RECIPE = "datacollator.mlm_probability 0.3, not 0.2; optimizer.name muon, not adamw"
"""Trained weights continue without it."""


@pytest.mark.parametrize(
    ("override", "output"),
    [
        ("model.hidden_size=512", "model.hidden_size 768, not 512"),
        ("dataset.max_seq_length=512", "dataset.max_seq_length 1024, not 512"),
        ("trainer.torch_compile=false", "trainer.torch_compile true, not false"),
        ("distributed.nproc_per_node=4", "distributed.nproc_per_node 1, not 4"),
        ("optimizer.name=lion", "optimizer.name muon, not lion"),
        ("trainer.max_steps=5", ""),
        ("model.pretrained_checkpoint=runs/first/checkpoints/7", RECIPE),
    ],
)
def test_keys_that_the_profile_was_not_measured_with_are_named(override, output):
    caveat = f" (h200-prod was measured with {output}: this speed is an estimate)" if output else ""
    assert plan_assumptions(resolve_run("h200-prod", [], [override])).source.endswith(f"peak 46%{caveat}")


@pytest.mark.parametrize("name", ["h100-prod", "h200-prod", "a100-prod", "8xh200-prod", "gpu"])
def test_a_profile_has_the_speed_that_it_states(name):
    assert plan_assumptions(resolve_run(name)).source.endswith("%")


def test_an_estimate_is_stated_for_kernels_and_devices():
    source = plan_assumptions(resolve_run("a100-prod", [], ["distributed.nproc_per_node=2"])).source
    assert source.endswith("(a100-prod states this MFU for distributed.nproc_per_node 1, not 2)")
    assert "states" not in plan_assumptions(resolve_run("a100-prod", [], ["model.hidden_size=512"])).source
    hf = ["model.type=hf", "model.pretrained_checkpoint=models/llama", "task=causal"]
    assert plan_assumptions(resolve_run("cpu", [], hf)).source.endswith("%")


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
    assumptions = plan_assumptions(run, gpus)
    assert (assumptions.device_name, assumptions.device_memory_mib) == (device, memory_mib)


def test_a_folder_of_weights_that_is_missing_is_not_taken_for_a_name_on_the_hub(tmp_path):
    path = tmp_path / "missing"
    run = resolve_run(None, [], ("model.type=hf", f"model.pretrained_checkpoint={path}"))
    refusal_of(plan_run, "MOD006", f"{path} does not exist", run)
