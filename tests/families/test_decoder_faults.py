"""Probes of attention on causal models of transformers: sound ones pass, and each planted fault is named."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from neobert.families.attention import Window
from neobert.families.hf import attention as hf_attention
from neobert.families.table import model_shape
from neobert.objectives import TokenObjective
from neobert.probes.attention import attention_answers, draw_weights
from neobert.probes.probed_model import MODEL_ARGUMENTS, probed_model
from neobert.tasks.specs import SPECS
from tests.families.layouts import DECODERS
from tests.families.test_decoders import LONGEST, ROWS, build, config_of
from tests.probes.test_attention_probes import full_row
from validators.known_answers import LIMITS, unmeasured_kinds

OF_ATTENTION = {"isolation", "causal", "equality", "positions"}
HALF = partial(torch.autocast, "cpu", torch.bfloat16)
FULL_ROW = full_row(4 * LONGEST)


def answers_of(architecture, folder, change=lambda inputs: inputs, autocast=nullcontext, row=FULL_ROW):
    """Return the answers of the probes of a model, and what the model declares."""
    shape = model_shape(config_of(architecture, folder), ROWS)
    backbone = build(architecture, folder)
    draw_weights(backbone.model, shape.embedding_multiplier)
    world = SimpleNamespace(device=torch.device("cpu"), autocast=autocast)

    def inputs(batch, _device):
        return change({name: getattr(batch, name) for name in MODEL_ARGUMENTS})

    objective = TokenObjective(backbone, targets_only=True).eval()
    probed = probed_model(backbone, objective, world, inputs, shape.attention)
    with torch.no_grad():
        return list(attention_answers(probed, replace(row, max_seqlen=LONGEST))), shape.attention


def failed(*given, **named):
    """Return the kinds of probes that fail on a model, and those that could not be carried out."""
    answers, spec = answers_of(*given, **named)
    missing = OF_ATTENTION & {*unmeasured_kinds(answers, spec, SPECS["causal"])}
    return {each.kind for each in answers if LIMITS[each.kind].is_missed(each)} | missing


@pytest.mark.parametrize("autocast", [nullcontext, HALF], ids=["fp32", "bf16"])
@pytest.mark.parametrize("architecture", DECODERS)
def test_a_sound_model_passes_every_probe(architecture, autocast, tmp_path):
    assert failed(architecture, tmp_path, autocast=autocast) == set()


def test_one_document_says_nothing_of_isolation(tmp_path):
    answers, _ = answers_of("gpt2", tmp_path, row=full_row(LONGEST, 1))
    assert {each.kind for each in answers} == {"causal", "equality", "positions"}


def test_a_row_has_a_document_with_two_pairs_of_tokens_outside_the_window(tmp_path):
    rows = []
    _, spec = answers_of("mistral", tmp_path, lambda inputs: rows.append(inputs) or inputs)
    assert spec.window.reach + 2 in rows[0]["cu_seqlens"].diff()


def merged(inputs):
    bounds = inputs["cu_seqlens"]
    bounds = torch.cat([bounds[:2], bounds[3:], bounds[-1:]])
    return inputs | {"cu_seqlens": bounds, "max_seqlen": int(bounds.diff().max())}


def running_on(inputs):
    return inputs | {"position_ids": torch.arange(len(inputs["position_ids"]))}


def without_positions(inputs):
    return {name: value for name, value in inputs.items() if name != "position_ids"} | {"position_ids": None}


@pytest.mark.parametrize(
    ("architecture", "change", "kinds"),
    [
        ("llama", merged, {"isolation", "equality"}),
        ("llama", running_on, {"positions"}),  # rotations of queries and keys see distances alone
        ("gpt2", running_on, {"equality", "positions"}),
        ("llama", without_positions, {"positions"}),
        ("gpt2", without_positions, {"equality", "positions"}),
    ],
)
def test_a_fault_of_the_inputs_is_named(architecture, change, kinds, tmp_path):
    assert failed(architecture, tmp_path, change) == kinds


def wider(by):
    return lambda spec: replace(spec, window=spec.window and Window((0,), spec.window.reach + by))


@pytest.mark.parametrize("autocast", [nullcontext, HALF], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("architecture", "change", "kinds"),
    [
        ("llama", lambda spec: replace(spec, direction="bidirectional"), {"causal", "equality"}),
        ("mistral", wider(1), {"equality"}),
        ("mistral", wider(-1), {"equality"}),
        ("gemma3_text", lambda spec: replace(spec, window=None), {"equality"}),
        ("llama", lambda spec: replace(spec, scale=(2 * spec.head_size) ** -0.5), {"equality"}),
        ("granite", lambda spec: replace(spec, scale=None), {"equality"}),
        ("gemma2", lambda spec: replace(spec, softcap=None), {"equality"}),
    ],
)
def test_a_fault_of_attention_is_named(architecture, change, kinds, autocast, tmp_path, monkeypatch):
    sound = hf_attention.spec_from_call
    monkeypatch.setattr(hf_attention, "spec_from_call", lambda *of, **named: change(sound(*of, **named)))
    assert failed(architecture, tmp_path, autocast=autocast) == kinds


@pytest.mark.parametrize("autocast", [nullcontext, HALF], ids=["fp32", "bf16"])
def test_key_heads_in_another_order_are_named(autocast, tmp_path, monkeypatch):
    """Heads of keys repeated as 0 1 0 1, where queries read 0 0 1 1."""
    sound = hf_attention.packed_attention

    def repeated(kernel, bounds, longest, total, spec, dropout):
        attend = sound(kernel, bounds, longest, total, replace(spec, kv_heads=spec.heads), dropout)
        return lambda q, k, v: attend(q, *(each.repeat(1, spec.heads // spec.kv_heads, 1) for each in (k, v)))

    monkeypatch.setattr(hf_attention, "packed_attention", repeated)
    assert failed("llama", tmp_path, autocast=autocast) == {"equality"}
