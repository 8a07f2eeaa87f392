"""Probes of attention of transformers models, as `validate-gpu` and preflight run them."""

from __future__ import annotations

import json

import pytest
import torch.nn.functional as F
from accelerate.state import AcceleratorState

from neobert.config import to_dict
from neobert.probes.__main__ import answer
from profiles.registry import resolve_run
from validators.core import judge
from validators.facts import Facts, ProbeRecord
from validators.facts_io import record_of
from validators.facts_num import NumericsFacts
from validators.finding import Level
from validators.planning import plan_run

SIZES = (
    "model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=2",
    "model.intermediate_size=48", "tokenizer.vocab_size=512", "dataset.max_seq_length=160",
)  # fmt: skip


@pytest.fixture
def judged(tmp_path):
    """Probe a transformers model in this process; return the checks by code."""

    def of(architecture: str, *more: str):
        run = resolve_run(
            "cpu-demo", [], ("model.type=hf", f"model.architecture={architecture}", *SIZES, *more)
        )
        file = tmp_path / "resolved.json"
        file.write_text(json.dumps(to_dict(run.config)), encoding="utf-8")
        try:
            found = json.loads(json.dumps(answer(file, "cpu", every=False)["numerics"]))
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)
        facts = Facts(
            numerics=record_of(NumericsFacts, found), probes=(ProbeRecord(name="numerics", status="ok"),)
        )
        _, checks = judge(run, plan_run(run), facts, (Level.GPU,))
        return {check.id: check for check in checks}

    return of


@pytest.mark.parametrize("packs", ["false"])
@pytest.mark.parametrize("architecture", ["bert", "modernbert"])
def test_sound_transformers_models_pass(judged, architecture, packs):
    checks = judged(architecture, f"datacollator.pack_sequences={packs}")
    for code in ("NUM001", "NUM002", "NUM003"):
        assert checks[code].status == "pass", checks[code].message
    assert checks["NUM004"].status == "skip"


def test_a_causal_mask_in_an_encoder_is_named(judged, monkeypatch):
    attend = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda q, k, v, **_: attend(q, k, v, is_causal=True)
    )
    checks = judged("bert", "datacollator.pack_sequences=false")
    assert "direction: changing later tokens" in checks["NUM003"].message
    assert "equality: " in checks["NUM002"].message


def test_padding_that_is_seen_is_named(judged, monkeypatch):
    attend = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, **_: attend(q, k, v))
    checks = judged("modernbert", "datacollator.pack_sequences=false")
    assert "isolation: changing other documents and padding" in checks["NUM001"].message
