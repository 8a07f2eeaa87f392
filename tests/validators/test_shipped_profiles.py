"""No rule fires on a shipped profile, nor on what may be derived from a production profile."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.registry import list_profiles, load_profile, resolve_run
from validators.core import judge
from validators.finding import Status
from validators.planning import plan_run
from validators.verdict import verdict_of

PRODUCTION = [name for name in list_profiles() if load_profile(name).kind == "production"]


@pytest.mark.parametrize("name", list_profiles())
def test_shipped_profile_lints_clean(name):
    run = resolve_run(name)
    findings, checks = judge(run, plan_run(run))
    assert findings == []
    assert {check.status for check in checks} <= {Status.PASS, Status.SKIP}
    assert verdict_of(findings, checks, strict=True).name == "pass"


def test_there_are_production_profiles():
    assert len(PRODUCTION) >= 5


@st.composite
def sound_runs(draw):
    """A profile with a sound choice of size, batch, schedule and cadence on top."""
    name = draw(st.sampled_from(PRODUCTION))
    profile = load_profile(name).config
    length = profile.dataset.max_seq_length
    heads = draw(st.integers(10, 16))
    attention = draw(st.sampled_from(["auto", "flash_attn_varlen", "torch_varlen"]))
    kernels = ["auto", "torch", "triton", "fused"] if attention == "auto" else ["auto", "torch"]
    rows = draw(st.sampled_from([8, 16, 24])) * 1024 // length
    accumulation = draw(st.integers(32, 64))
    max_steps = draw(st.integers(60_000, 200_000))
    warmup = draw(st.integers(0, 5_000))
    return name, {
        "seed": draw(st.integers(0, 2**31)),
        "model": {
            "hidden_size": 64 * heads,
            "num_attention_heads": heads,
            "num_hidden_layers": draw(st.integers(12, 28)),
            "intermediate_size": 256 * heads,
            "tie_word_embeddings": draw(st.booleans()),
            "attn_backend": attention,
            "kernel_backend": draw(st.sampled_from(kernels)),
            "max_position_embeddings": draw(st.sampled_from([length, 2 * length])),
        },
        "optimizer": {
            "lr": draw(st.floats(1e-5, 1e-2)),
            "betas": [0.9, draw(st.sampled_from([0.95, 0.999]))],
        },
        "scheduler": {
            "name": draw(st.sampled_from(["cosine", "linear"])),
            "warmup_steps": warmup,
            "decay_steps": draw(st.none() | st.integers(1, max_steps - warmup)),
        },
        "trainer": {
            "max_steps": max_steps,
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": accumulation,
            "global_batch_size": rows * accumulation * profile.distributed.nproc_per_node,
            "save_steps": draw(st.integers(10, 50)),
            "save_total_limit": draw(st.sampled_from([0, 2, 5])),
            "eval_steps": draw(st.integers(0, max_steps)),
        },
    }


@settings(max_examples=60)
@given(sound_runs())
def test_no_rule_fires_on_a_sound_run(tmp_path_factory, drawn):
    name, config = drawn
    file = tmp_path_factory.mktemp("sound") / "run.yaml"
    file.write_text(json.dumps({"profile": name} | config), encoding="utf-8")
    run = resolve_run(None, [file])
    findings, checks = judge(run, plan_run(run))
    assert findings == []
    assert verdict_of(findings, checks).name == "pass"
