"""Causal models of transformers: each document is what it is alone, and no later token matters."""

import json
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from neobert.config import from_dict
from neobert.export.folder import write_hf_folder
from neobert.families.backbone import build_backbone
from neobert.families.hf.architectures.table import ARCHITECTURES
from neobert.families.table import model_shape
from neobert.objectives import TokenObjective
from neobert.plan import memory
from neobert.plan.memory import WHOLE_VALUES
from neobert.probes.attention_suite import SpecialTokenIds
from tests.families import packed_rows
from tests.families.layouts import DECODERS, WINDOW, dropouts

LENGTHS = (1, 90, WINDOW + 2, 2, 37, WINDOW + 2, WINDOW, 9)
LONGEST, ROWS = max(LENGTHS), 128
WORLD = SimpleNamespace(device=torch.device("cpu"), compute_dtype=torch.float32, size=1)
CLOSE = 1e-5  # relative


@pytest.fixture(scope="module", params=DECODERS)
def backbone(request, tmp_path_factory):
    """One of each type for all tests, which do not change its weights."""
    return build(request.param, tmp_path_factory.mktemp(request.param))


def config_of(architecture, folder, section=None, **changes):
    small = {"model_type": architecture, "initializer_range": 0.1, **DECODERS[architecture], **changes}
    folder.joinpath("config.json").write_text(json.dumps(small))
    model = {"type": "hf", "config": str(folder), "max_position_embeddings": 4 * LONGEST, **(section or {})}
    values = {"task": "causal", "model": model, "dataset": {"max_seq_length": LONGEST}}
    values |= {"datacollator": {"pack_sequences": True}}
    return from_dict(values | {"trainer": {"mixed_precision": "no", "torch_compile": False}})


def build(architecture, folder, world=WORLD, **changes):
    torch.manual_seed(3)
    config = config_of(architecture, folder, **changes)
    built = build_backbone(config, SpecialTokenIds(pad_id=1), ROWS, world, "AutoModelForCausalLM", {})
    built.model.eval()
    return built


def packed(lengths=LENGTHS):
    return packed_rows.packed(lengths, lowest_id=1)


@pytest.mark.parametrize("architecture", DECODERS)
def test_the_section_sets_every_dropout_of_the_config_json_to_0(architecture, tmp_path):
    section = {"attention_dropout": 0.0}
    if ARCHITECTURES[architecture].dropout is not None:
        section["dropout"] = 0.0
    built = build(architecture, tmp_path, section=section, **dropouts(architecture))
    built.model.train()
    with torch.no_grad():
        assert torch.equal(built.hidden(packed()), built.hidden(packed()))


def test_a_packed_document_is_the_document_alone(backbone):
    packed_rows.assert_states_of_documents_alone(backbone, packed(), CLOSE)


def test_embeddings_looked_up_for_a_compiled_step_are_the_model_s(backbone):
    objective, row = TokenObjective(backbone, targets_only=True), packed()
    labels = row["input_ids"].clone()
    with torch.autocast("cpu", torch.bfloat16):
        losses = []
        for objective._is_lookup_compiled in (False, True):
            losses.append(objective(len(labels), labels, **row))
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-3)
    gradient = torch.autograd.grad(losses[0], backbone.model.get_input_embeddings().weight)[0]
    assert (gradient[backbone.model.config.pad_token_id] != 0).any()


@torch.no_grad()
def test_the_residual_stream_has_the_compute_type_as_the_plan_assumes(backbone, tmp_path):
    types = []
    last = next(each for each in backbone.model.base_model.modules() if isinstance(each, nn.ModuleList))[-1]
    hooks = [
        last.register_forward_pre_hook(lambda _, args: types.append(args[0].dtype)),
        last.register_forward_hook(
            lambda _, args, out: types.append((out if isinstance(out, torch.Tensor) else out[0]).dtype)
        ),
    ]
    with torch.autocast("cpu", torch.bfloat16):
        backbone.hidden(packed())
    for hook in hooks:
        hook.remove()
    assert types == [torch.bfloat16] * 2
    assert not model_shape(config_of(backbone.model.config.model_type, tmp_path), ROWS).has_fp32_stream


def test_recomputed_blocks_give_the_same_gradients(backbone):
    row, weights = packed(), list(backbone.model.base_model.parameters())
    gradients = []
    for is_recomputed in (False, True):
        backbone.model.train()
        for block in backbone.blocks:
            block.gradient_checkpointing = is_recomputed
            block._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        torch.manual_seed(7)  # of dropout
        gradients.append(torch.autograd.grad(backbone.hidden(row).square().mean(), weights))
    backbone.model.eval()
    for block in backbone.blocks:
        block.gradient_checkpointing = False
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_the_gradients_of_a_packed_row_are_those_of_its_documents(backbone):
    packed_rows.assert_gradients_of_documents_alone(backbone, packed())


@torch.no_grad()
def test_transformers_loads_the_written_folder_and_has_the_same_loss(backbone, tmp_path):
    write_hf_folder(backbone.model, None, tmp_path)
    theirs, report = AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report.values())
    for name, weight in theirs.state_dict().items():
        assert torch.equal(weight, backbone.model.state_dict()[name]), name
    ids = torch.randint(5, ROWS, (256,))
    row = packed((90, 90, 76)) | {"input_ids": ids}
    labels = torch.cat([torch.cat([each[1:], torch.tensor([-100])]) for each in ids.split((90, 90, 76))])
    losses = [
        theirs(each[None], labels=each[None]).loss * (len(each) - 1) for each in ids.split((90, 90, 76))
    ]
    for whole_values in (WHOLE_VALUES, 0):  # also in chunks, by another program
        with mock.patch.object(memory, "WHOLE_VALUES", whole_values):
            loss = TokenObjective(backbone, targets_only=True)(253, labels, **row)
        assert loss.item() == pytest.approx(sum(losses).item(), rel=CLOSE)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("architecture", DECODERS)
def test_weights_are_loaded_strictly(architecture, is_tied, tmp_path):
    source, started = (build(architecture, tmp_path, tie_word_embeddings=is_tied) for _ in range(2))
    with torch.no_grad():
        for weight in source.model.parameters():
            weight.normal_()
    source.model.save_pretrained(tmp_path)
    report = started.load(tmp_path)
    assert (report.initialized, report.unused) == ((), ())
    for name, weight in source.model.state_dict().items():
        assert torch.equal(weight, started.model.state_dict()[name]), name
    tables = started.model.get_input_embeddings().weight, started.head.linear.weight
    assert (tables[0] is tables[1]) == is_tied
