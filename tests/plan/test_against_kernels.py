"""The plan's memory against what the own kernels keep, counted, and what a card reserved, measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from neobert.config.schema import ModelConfig, RunConfig
from neobert.families.table import model_shape
from neobert.plan import Plan, build_plan
from neobert.plan.hardware import assumptions_for
from neobert.plan.memory import activation_bytes
from profiles.registry import load_profile

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402  only where torch is

from neobert.families.neobert.build import backbone_from_model  # noqa: E402
from neobert.model import NeoBERTLMHead  # noqa: E402
from neobert.model.build import build_model_config  # noqa: E402
from neobert.objectives.packed_encoder import KernelObjective  # noqa: E402
from neobert.objectives.step_kernels import StepKernels  # noqa: E402
from tests.kept_memory import counting_kept  # noqa: E402

SMALL = ModelConfig(hidden_size=128, num_attention_heads=2, num_hidden_layers=3, intermediate_size=512)
VOCAB_SIZE, TOKENS = 256, 4096
MEASUREMENTS = Path(__file__).parents[2] / "docs" / "measurements"


def detail(name: str):
    return json.loads((MEASUREMENTS / f"{name}.json").read_text(encoding="utf-8"))["detail"]


def kept_bytes(model: ModelConfig, kernels: str) -> int:
    """Bytes that autograd keeps of one forward pass of the encoder, weights left out; no kernel runs."""
    with FakeTensorMode():
        lm = NeoBERTLMHead(build_model_config(model, VOCAB_SIZE, 0, "sdpa"))
        objective = KernelObjective(
            backbone_from_model(lm), StepKernels(kernels, "triton_packed", "sdpa", ""), TOKENS
        )
        positions = torch.arange(TOKENS)
        boundaries = torch.zeros(9, dtype=torch.int32)
        with counting_kept(lm) as kept:
            objective.encode(
                {
                    "input_ids": positions % VOCAB_SIZE,
                    "position_ids": positions,
                    "cu_seqlens": boundaries,
                    "max_seqlen": TOKENS,
                }
            )
    return sum(kept.values())


@pytest.mark.parametrize("kernels", ["fused", "triton"])
def test_own_kernels_keep_what_is_predicted(kernels):
    """A difference of depths leaves out what is kept once; bf16 copies of weights count as weights."""
    shallow, deep = (replace(SMALL, num_hidden_layers=n) for n in (2, 6))
    runs = [RunConfig(model=model) for model in (shallow, deep)]
    fewer, more = (model_shape(run, 1) for run in runs)
    copies = 2 * (more.parameters.linear - fewer.parameters.linear)
    counted = kept_bytes(deep, kernels) - kept_bytes(shallow, kernels) - copies
    predicted = activation_bytes(runs[1], more, kernels) - activation_bytes(runs[0], fewer, kernels)
    assert TOKENS * predicted == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize(
    ("measured", "arm", "kernels", "rows"),
    [
        ("fused-against-torch", "a", "fused", 64),
        ("fused-against-torch", "b", "torch", 64),
        ("fused-against-triton", "b", "triton", 64),
        ("microbatch-rows", "b", "fused", 32),
    ],
)
def test_a_card_reserved_what_is_predicted(measured, arm, kernels, rows):
    reserved = detail(measured)["arms"][arm]["memory"]["gpu_mem_reserved_mib"]
    assert planned(kernels, rows).memory_mib.value == pytest.approx(reserved, rel=0.05)


def planned(kernels: str, rows: int) -> Plan:
    config = load_profile("h200-prod").config
    model = replace(config.model, kernel_backend=kernels)
    trainer = replace(config.trainer, per_device_train_batch_size=rows)
    return build_plan(replace(config, model=model, trainer=trainer), assumptions_for("H200", None, 0.48))
