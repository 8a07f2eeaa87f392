"""Limits of the rules on what wastes a day of GPUs and breaks nothing."""

from dataclasses import replace
from math import log

import pytest

from launcher.probes.host import recorded_environment
from tests.validators.judging import FACTS, found, run_of, with_facts, with_prepared
from validators.facts import NO_FACTS
from validators.finding import Severity
from validators.rules.host_environment import DEBUGGING

STEP = {"tokens_per_second": 1e6, "step_time_s": 1.0}
NO_LIMIT = "trainer.eval_max_batches=null"
ALL_OF_THE_SPLIT = (NO_LIMIT, "dataset.eval_samples=8192")
NODES_OF_TWO = ("distributed.nproc_per_node=2", "distributed.nnodes=2")


def evaluated(tokens: int, *overrides: str) -> list[tuple[str, Severity | None]]:
    run = run_of("trainer.eval_steps=100", *ALL_OF_THE_SPLIT, *overrides)
    facts = with_prepared(num_eval_tokens=tokens)
    return [(one.path, one.severity) for one in found("BUD003", run, facts, **STEP)]


def test_an_evaluation_may_take_a_fifth_of_the_training():
    assert evaluated(60_000_000) == []
    assert evaluated(60_300_000) == [("trainer.eval_steps", Severity.WARN)]
    assert evaluated(300_000_000) == [("trainer.eval_steps", Severity.WARN)]
    assert evaluated(303_000_000) == [("trainer.eval_steps", None)]


@pytest.mark.parametrize(("tokens", "is_told_to_wait"), [(239, True), (240, False)])
def test_an_evaluation_is_told_to_wait_for_the_last_step_and_no_longer(tokens, is_told_to_wait):
    """A third of a second a token: 239 of them are a fifth of 399 steps."""
    run = run_of("trainer.max_steps=399", "trainer.eval_steps=100", *ALL_OF_THE_SPLIT)
    pace = {"tokens_per_second": 1.0, "step_time_s": 1.0}
    found_at = {
        one.path: one.hint for one in found("BUD003", run, with_prepared(num_eval_tokens=tokens), **pace)
    }
    assert ("set trainer.eval_steps to 399" in found_at.get("trainer.eval_steps", "")) == is_told_to_wait


def test_an_evaluation_shows_more_than_noise_from_a_thousand_targets():
    assert evaluated(5_000) == []
    assert evaluated(4_999) == [("dataset.eval_samples", Severity.WARN)]
    one_batch = ("trainer.eval_max_batches=1", "trainer.per_device_eval_batch_size=5")
    assert evaluated(300_000_000, *one_batch) == []
    assert evaluated(4_999, *one_batch) == [("trainer.eval_max_batches", Severity.WARN)]


def test_an_evaluation_is_estimated_where_nobody_looked_and_judged_only_where_it_can_be():
    samples = "dataset.eval_samples=300000"  # of 217 tokens
    (one,) = found("BUD003", run_of("trainer.eval_steps=100", NO_LIMIT, samples), NO_FACTS, **STEP)
    assert (
        "about 65,100,000 tokens takes 21.7 s, 22% of the training time between two evaluations"
        in one.message
    )
    for unknown in ((samples, "dataset.eval_split=test"), ("dataset.eval_samples=null",)):
        assert found("BUD003", run_of(*unknown, "trainer.eval_steps=1", NO_LIMIT), NO_FACTS, **STEP) == []


@pytest.mark.parametrize(
    ("keys", "path", "severity"),
    [
        # 250,000,000 weights: a gradient of norm 1 is 6.3246e-5 a weight.
        (["optimizer.eps=6.32e-5"], "", None),
        (["optimizer.eps=6.33e-5"], "optimizer.eps", Severity.WARN),
        (["optimizer.eps=5.69e-4"], "optimizer.eps", Severity.WARN),
        (["optimizer.eps=5.70e-4"], "optimizer.eps", None),
        (["optimizer.eps=6.33e-5", "trainer.gradient_clipping=null"], "optimizer.eps", Severity.WARN),
        (["optimizer.eps=6.33e-5", "trainer.gradient_clipping=100.0"], "optimizer.eps", Severity.WARN),
        (["trainer.gradient_clipping=1.59e-4"], "", None),
        (["trainer.gradient_clipping=1.58e-4"], "trainer.gradient_clipping", Severity.WARN),
        (["trainer.gradient_clipping=1e-8"], "trainer.gradient_clipping", None),
        (["optimizer.eps=1e-4", "trainer.gradient_clipping=0.5"], "optimizer.eps", Severity.WARN),
        (["optimizer.eps=1e-6", "trainer.gradient_clipping=0.01"], "optimizer.eps", Severity.WARN),
        (["optimizer.weight_decay=5.0", "optimizer.lr=1e-3"], "", None),
        (["optimizer.weight_decay=5.04", "optimizer.lr=1e-3"], "optimizer.weight_decay", Severity.WARN),
        (["optimizer.weight_decay=50.0", "optimizer.lr=1e-3"], "optimizer.weight_decay", Severity.WARN),
        (["optimizer.weight_decay=51.0", "optimizer.lr=1e-3"], "optimizer.weight_decay", None),
    ],
)
def test_what_drowns_a_gradient(keys, path, severity):
    output = found("OPT005", run_of(*keys), num_parameters=250_000_000)
    assert [(one.path, one.severity) for one in output] == ([(path, severity)] if path else [])


def test_half_of_the_rate_is_enough_and_a_tenth_of_it_a_warning():
    assert found("OPT005", run_of("optimizer.eps=0.01"), num_parameters=10_000) == []
    (one,) = found("OPT005", run_of("optimizer.eps=9.0"), num_parameters=1)
    assert (one.severity, "mean step is 10.00%" in one.message) == (Severity.WARN, True)


def test_decay_is_judged_at_the_rate_of_the_matrices():
    muon = ("optimizer.name=muon", "optimizer.lr=1e-4", "optimizer.weight_decay=1.0")
    assert found("OPT005", run_of(*muon)) == []
    assert found("OPT005", run_of(*muon, "optimizer.muon_lr=0.02")) != []
    at_the_limit = ("optimizer.lr=0.05", "optimizer.weight_decay=0.1")  # 0.005, and 1e-18 more as a float
    assert found("OPT005", run_of(*at_the_limit)) == []
    (one,) = found("OPT005", run_of("optimizer.lr=1e-3", "optimizer.weight_decay=10.0"))
    assert "removes 1.00% of every matrix: an update decays to half in 69 steps" in one.message
    (one,) = found("OPT005", run_of("optimizer.lr=1.0", "optimizer.weight_decay=1.0"))
    assert one.message.endswith("removes 100.00% of every matrix")


@pytest.mark.parametrize(
    ("pull", "severities"),
    [(0.1, []), (0.1001, [Severity.WARN]), (1.0, [Severity.WARN]), (1.001, [None])],
)
def test_the_pull_of_a_z_loss(pull, severities):
    """Of 2 z ln(V)."""
    vocab_size = 50_000
    run = run_of(f"trainer.z_loss={pull / (2 * log(vocab_size))!r}")
    assert [one.severity for one in found("OPT005", run, vocab_size=vocab_size)] == severities


@pytest.mark.parametrize(
    ("key", "is_share"),
    [("warmup_percent=0.05", True), ("warmup_percent=0.99", True), ("warmup_percent=1.0", False),
     ("warmup_percent=0.0", False), ("decay_percent=0.1", True), ("decay_percent=20.0", False)],
)  # fmt: skip
def test_a_percentage_that_looks_like_a_share(key, is_share):
    output = found("SCH001", run_of("scheduler.warmup_steps=0", f"scheduler.{key}"))
    assert [one.severity for one in output if "of 50,000 steps is" in one.message] == [
        Severity.WARN
    ] * is_share


def reported(environment: dict[str, str], *overrides: str) -> list[str]:
    run, facts = run_of(*overrides), with_facts("host", environment=environment)
    return [one.message.partition("=")[0] for one in found("HST010", run, facts)]


def test_debugging_of_ranks_costs_ranks_and_that_of_the_network_nodes():
    ranks = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "TORCH_DISTRIBUTED_DEBUG": "detail"}
    network = {"NCCL_IB_DISABLE": "1"}
    assert reported(ranks | network) == []
    assert set(reported(ranks | network, "distributed.nproc_per_node=2")) == ranks.keys()
    assert set(reported(ranks | network, *NODES_OF_TWO)) == (ranks | network).keys()
    assert set(reported(ranks | network, "distributed.nnodes=2")) == (ranks | network).keys()


def test_variables_of_transformer_engine_matter_with_its_recipes():
    current, block = "NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES", "NVTE_FP8_BLOCK_SCALING_FP32_SCALES"
    backward, enabled = "NVTE_BACKWARD_OVERRIDE", "transformer_engine.enable=true"
    engine = {current: "1", block: "1", backward: "dequantized"}
    assert reported(engine) == []
    for recipe, own in (("fp8_current", [current]), ("fp8_block", [block]), ("mxfp8", [])):
        assert reported(engine, enabled, f"transformer_engine.recipe={recipe}") == [*own, backward]
    assert reported(dict.fromkeys(engine, "0"), enabled) == []
    assert reported({backward: "high_precision"}, enabled) == [backward]


def test_what_does_not_compile_is_not_told_that_nothing_is_compiled():
    disabled = {"TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
    assert set(reported(disabled)) == disabled.keys()
    assert reported(disabled, "trainer.torch_compile=false") == []


def test_a_run_on_a_cpu_launches_no_kernels():
    facts = with_facts("host", environment={"CUDA_LAUNCH_BLOCKING": "1"})
    assert found("HST010", run_of(profile="cpu-demo"), facts) == []


def test_every_variable_that_is_judged_is_recorded():
    environment = {name: value for name, (value, _, _) in DEBUGGING.items()}
    assert recorded_environment(environment) == environment


def test_unused_gpus_are_counted_and_those_in_use_are_left_out():
    gpu = FACTS.gpus[0]
    gpus = tuple(replace(gpu, index=index, uuid=f"GPU-{index}") for index in range(4))
    (one,) = found("GPU009", run_of(), replace(FACTS, gpus=gpus))
    assert one.message == "3 of 4 visible GPUs would be idle: 1, 2, 3"
    assert "CUDA_VISIBLE_DEVICES=0 " in one.hint
    taken = (*gpus[:2], replace(gpus[2], memory_used_mib=40_000), gpus[3])
    (one,) = found("GPU009", run_of("distributed.nproc_per_node=2"), replace(FACTS, gpus=taken))
    assert one.message == "1 of 4 visible GPUs would be idle: 3"
