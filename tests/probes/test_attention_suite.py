"""Probes of attention of transformers models, as `validate-gpu` and preflight run them."""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from accelerate.state import AcceleratorState

from neobert.config import to_dict
from neobert.families.attention import Window
from neobert.families.hf import attention
from neobert.probes import attention_suite
from neobert.probes.__main__ import probe_run_file
from profiles.registry import resolve_run
from tests.families.layouts import PACKED, SMALL
from tests.merged_documents import look_back_only, two_merged
from tests.probes.conftest import checks_of

SIZES = ("model.num_hidden_layers=2", "tokenizer.vocab_size=512", "dataset.max_seq_length=160")


@pytest.fixture
def judged(tmp_path):
    """Probe a transformers model in this process; return the checks by code."""

    def of(architecture: str, *more: str, **settings):
        settings |= {"model_type": architecture, **SMALL[architecture]}
        (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        run = resolve_run("cpu-demo", [], ("model.type=hf", f"model.config={tmp_path}", *SIZES, *more))
        file = tmp_path / "resolved.json"
        file.write_text(json.dumps(to_dict(run.config)), encoding="utf-8")
        try:
            return checks_of(run, probe_run_file(file, "cpu", every=False)["numerics"])
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)

    return of


@pytest.mark.parametrize(
    ("architecture", "packs"), [(name, "true") for name in PACKED] + [(name, "false") for name in SMALL]
)
def test_sound_transformers_models_pass(judged, architecture, packs):
    checks = judged(architecture, f"datacollator.pack_sequences={packs}")
    for code in ("NUM001", "NUM002", "NUM003"):
        assert checks[code].status == "pass", checks[code].message
    assert checks["NUM004"].status == "skip"


def test_a_sharded_model_is_probed_by_its_first_blocks(judged, monkeypatch):
    """All of them may not fit on one device; of each kind there is one."""
    built = []
    build = attention_suite.build_backbone
    monkeypatch.setattr(
        attention_suite, "build_backbone", lambda *given: built.append(build(*given)) or built[0]
    )
    types = ["full_attention"] * 3 + ["sliding_attention"] * 6
    sharded = ("distributed.mode=fsdp2", "model.num_hidden_layers=9", "datacollator.pack_sequences=true")
    checks = judged("modernbert", *sharded, layer_types=types)
    assert [checks[code].status for code in ("NUM001", "NUM002", "NUM003")] == ["pass"] * 3
    assert built[0].model.config.layer_types == types[:4]


def one_token_wider(monkeypatch):
    real = attention.spec_from_call

    def wider(*arguments, **own):
        spec = real(*arguments, **own)
        window = spec.window and Window(spec.window.layers, spec.window.reach + 1)
        return replace(spec, window=window)

    monkeypatch.setattr(attention, "spec_from_call", wider)


def another_scale(monkeypatch):
    real = attention.spec_from_call
    monkeypatch.setattr(
        attention, "spec_from_call", lambda *given, **own: replace(real(*given, **own), scale=0.2)
    )


def heads_in_another_order(monkeypatch):
    attend = F.scaled_dot_product_attention

    def repeated(q, k, v, *, enable_gqa, **options):
        per_group = q.shape[1] // k.shape[1]
        return attend(q, *(each.repeat(1, per_group, 1, 1) for each in (k, v)), **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", repeated)


def positions_that_run_on(monkeypatch):
    real = attention_suite.objective_inputs

    def running_on(batch, device):
        positions = torch.arange(batch.input_ids.numel()) % batch.max_seqlen
        return real(batch, device) | {"position_ids": positions}

    monkeypatch.setattr(attention_suite, "objective_inputs", running_on)


@pytest.mark.parametrize(
    ("architecture", "fault", "messages"),
    [
        ("modernbert", one_token_wider, {"NUM002": "equality: "}),
        ("eurobert", heads_in_another_order, {"NUM002": "equality: "}),
        *((name, another_scale, {"NUM002": "equality: "}) for name in PACKED),
        *((name, two_merged, {"NUM001": "isolation: ", "NUM002": "equality: "}) for name in PACKED),
        *((name, positions_that_run_on, {"NUM002": "positions: "}) for name in PACKED),
    ],
)
def test_a_fault_of_packed_documents_is_named(judged, monkeypatch, architecture, fault, messages):
    """In bf16, whose rounding hides most."""
    fault(monkeypatch)
    checks = judged(architecture, "trainer.mixed_precision=bf16")
    for code, message in messages.items():
        assert message in checks[code].message


def test_a_causal_mask_in_an_encoder_is_named(judged, monkeypatch):
    look_back_only(monkeypatch)
    checks = judged("bert", "datacollator.pack_sequences=false")
    assert "direction: changing later tokens" in checks["NUM003"].message
    assert "equality: " in checks["NUM002"].message


def test_padding_that_is_seen_is_named(judged, monkeypatch):
    attend = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, **_: attend(q, k, v))
    checks = judged("modernbert", "datacollator.pack_sequences=false")
    assert "isolation: changing other documents and padding" in checks["NUM001"].message
