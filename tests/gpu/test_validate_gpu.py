"""The numerical suite on a CUDA device: sound backends pass, and faults in the real kernels do not."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from neobert.config import from_dict
from neobert.config.schema import RunConfig
from neobert.data.batches import microbatch
from neobert.kernels import attention as own_attention
from neobert.model import encoder
from neobert.objectives import TokenObjective, packed_encoder
from neobert.probes.hardware import rates
from neobert.probes.numerics import suite
from profiles.registry import resolve_run
from tests.gpu.obstacles import fused_obstacle  # noqa: F401  named by a skipif condition
from validators.core import judge
from validators.facts import Facts, ProbeRecord
from validators.facts_io import record_of
from validators.facts_numerics import NumericsFacts
from validators.finding import CheckResult, Level, Status
from validators.numerics_faults import ATOMIC_GRADIENTS, count_killed
from validators.planning import plan_run

HIDDEN, HEADS, INTERMEDIATE = 256, 4, 768

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler and of foreign kernels


WITHOUT_TRITON = importlib.util.find_spec("triton") is None
KERNELS = [
    "torch",
    pytest.param("triton", marks=pytest.mark.skipif(WITHOUT_TRITON, reason="needs triton")),
    pytest.param(
        "fused",
        marks=pytest.mark.skipif(
            "fused_obstacle(HIDDEN, HEADS, INTERMEDIATE)", reason="needs quack on Hopper"
        ),
    ),
]


def make_config(kernels: str) -> RunConfig:
    return from_dict(
        {
            "model": {
                "hidden_size": HIDDEN,
                "num_attention_heads": HEADS,
                "intermediate_size": INTERMEDIATE,
                "max_position_embeddings": 512,
                "vocab_size": 4096,
                "kernel_backend": kernels,
                "attn_backend": "torch_varlen" if kernels == "torch" else "auto",
            },
            "dataset": {"max_seq_length": 512},
        }
    )


def measured(kernels: str, *, every: bool = False) -> NumericsFacts:
    found = suite.run_suite(make_config(kernels), "cuda", every=every)
    return record_of(NumericsFacts, json.loads(json.dumps(found, allow_nan=False)))


def checks_of(numerics: NumericsFacts) -> dict[str, CheckResult]:
    facts = Facts(numerics=numerics, probes=(ProbeRecord(name="numerics", status="ok"),))
    run = resolve_run("gpu-smoke", [], [])
    return {check.id: check for check in judge(run, plan_run(run), facts, (Level.GPU,))[1]}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that is planted in Python is in no graph, and compiling takes long."""
    monkeypatch.setattr(
        suite, "_variants", lambda setting, candidates: [(kernels, False) for kernels in candidates.runnable]
    )


def test_every_installed_backend_passes_and_every_fault_is_seen():
    numerics = measured("torch", every=True)
    ended = {code: (check.status, check.message) for code, check in checks_of(numerics).items()}
    judged = {code: ended[code] for code in ("NUM001", "NUM002", "NUM003")}
    assert judged == dict.fromkeys(judged, (Status.PASS, ""))
    assert set(moved_without_atomics(numerics)) == set()
    killed, planted = count_killed(numerics)
    assert killed == planted >= 12 * sum(not path.is_compiled for path in numerics.paths)
    assert any(path.is_compiled for path in numerics.paths)


def moved_without_atomics(numerics: NumericsFacts) -> Iterator[tuple[str, str]]:
    """The gradients that do not repeat where no atomics are declared, with their path."""
    for path in numerics.paths:
        if path.attention not in ATOMIC_GRADIENTS:
            assert path.probes.repeats is not None
            yield from ((path.label, name) for name in path.probes.repeats.moved)


Leak = Callable[[int, Tensor, Tensor, Tensor, Tensor], Tensor]


@pytest.fixture
def leak(monkeypatch: pytest.MonkeyPatch, eager: None) -> Callable[[Leak], None]:
    """Plant `change(layer, context, q, k, v)` in every attention kernel, from outside the suite."""

    def plant(change: Leak) -> None:
        calls = [0]

        def next_layer() -> int:
            calls[0] += 1
            return (calls[0] - 1) % 2

        sound = encoder.packed_attention

        def leaky(*arguments: Any) -> Any:
            attend = sound(*arguments)
            return lambda q, k, v: change(next_layer(), attend(q, k, v), q, k, v)

        run = own_attention.run_forward

        def run_leaky(qkv: Tensor, tiles: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
            out, lse = run(qkv, tiles, num_heads)
            q, k, v = qkv.view(qkv.shape[0], num_heads, 3, -1).unbind(2)
            context = out.view(out.shape[0], num_heads, -1)
            return change(next_layer(), context, q, k, v).reshape(out.shape), lse

        monkeypatch.setattr(encoder, "packed_attention", leaky)
        monkeypatch.setattr(own_attention, "run_forward", run_leaky)

    return plant


def everywhere(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


def one_layer(layer: int, out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return everywhere(q, k, v) if layer == 1 else out


def one_head(layer: int, out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat([out[:, :1], everywhere(q, k, v)[:, 1:2], out[:, 2:]], 1) if layer == 0 else out


def one_key(layer: int, out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A tenth of one foreign token's value reaches one token, in one layer and head."""
    if layer == 0:
        return out
    out = out.clone()
    out[10, 0] += 0.1 * v[1, 0]
    return out


FAULTS: dict[str, Leak] = {
    "all layers": lambda layer, out, q, k, v: everywhere(q, k, v),
    "one layer": one_layer,
    "one head": one_head,
    "one key": one_key,
}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_leak_in_the_real_kernel_is_named(fault, kernels, leak):
    leak(FAULTS[fault])
    assert checks_of(measured(kernels))["NUM001"].status is Status.FAIL


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.usefixtures("eager")
def test_boundaries_off_by_one_are_named(kernels, monkeypatch):
    sound = TokenObjective.encode if kernels == "torch" else packed_encoder.KernelObjective.encode
    owner = TokenObjective if kernels == "torch" else packed_encoder.KernelObjective

    def shifted(self, inputs):
        bounds = inputs["cu_seqlens"]
        if bounds is not None and bounds[3] < bounds[-1]:
            bounds = bounds.clone()
            bounds[3] += 1
        return sound(self, {**inputs, "cu_seqlens": bounds})

    monkeypatch.setattr(owner, "encode", shifted)
    assert checks_of(measured(kernels))["NUM001"].status is Status.FAIL


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.usefixtures("eager")
def test_positions_that_run_on_are_named(kernels, monkeypatch):
    sound = microbatch.Assembler.build

    def running_on(self, *arguments):
        batch = sound(self, *arguments)
        batch.position_ids.copy_(torch.arange(batch.position_ids.numel()))
        return batch

    monkeypatch.setattr(microbatch.Assembler, "build", running_on)
    assert checks_of(measured(kernels))["NUM002"].status is Status.FAIL


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_causal_mask_is_named(kernels, leak, monkeypatch):
    bounds: list[int] = []
    make = suite.make_setting

    def noting(*arguments):
        setting = make(*arguments)
        bounds[:] = setting.batch.inputs["cu_seqlens"].tolist()
        return setting

    def causal(layer, out, q, k, v):
        parts = []
        for start, end in pairwise(bounds):
            part = (x[start:end].transpose(0, 1)[None] for x in (q, k, v))
            if end > start:
                parts.append(F.scaled_dot_product_attention(*part, is_causal=True)[0].transpose(0, 1))
        context = torch.cat(parts)
        return context if len(context) == len(out) else out

    monkeypatch.setattr(suite, "make_setting", noting)
    leak(causal)
    assert checks_of(measured(kernels))["NUM003"].status is Status.FAIL


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_kernel_that_does_not_repeat_itself_is_unknown(kernels, leak):
    leak(lambda layer, out, q, k, v: out + 0.05 * torch.randn_like(out))
    assert checks_of(measured(kernels))["NUM001"].status is Status.UNKNOWN


def test_the_devices_know_the_answer_and_are_timed():
    for device in rates.measure_devices():
        assert (device["wrong_answers"], device["answers"]) == (0, rates.ANSWER_REPEATS)
        assert min(device["burst_flops"], device["gemm_flops"]) > 0
        assert device["copy_bytes_per_s"] > device["host_bytes_per_s"] > 0
