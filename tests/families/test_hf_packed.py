"""Packed documents of transformers' encoders: each has the hidden states that it has alone."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import transformers

from neobert.config import from_dict
from neobert.config.schema import OptimizerConfig
from neobert.errors import ProjectError
from neobert.export.folder import write_hf_folder
from neobert.families.backbone import build_backbone
from neobert.families.hf.architectures.table import ARCHITECTURES
from neobert.families.linear import STACKED_QKV, WHOLE, Layout
from neobert.objectives.labelled import LabelledObjective
from neobert.optim import build_optimizer
from neobert.optim.fused_rows import BY_HEAD, join_rows, split_rows
from neobert.probes.attention_suite import SpecialTokenIds
from neobert.tasks.weights import start_from
from tests.families import packed_rows, test_decoders
from tests.families.layouts import DECODERS, PACKED, SMALL, WINDOW

LENGTHS = (1, 130, WINDOW + 2, 2, 77, WINDOW + 2, WINDOW, 9)
TOKENIZER = SpecialTokenIds(pad_id=1)
WORLD = SimpleNamespace(device=torch.device("cpu"), compute_dtype=torch.float32, size=1)
HEADS = ("AutoModelForMaskedLM", "AutoModelForSequenceClassification", "AutoModelForTokenClassification")


@pytest.fixture(params=PACKED)
def backbone(request, tmp_path):
    return build(request.param, tmp_path)


def build(architecture, folder, auto_class=HEADS[0], settings=None, **sections):
    small = {"model_type": architecture, "initializer_range": 0.1, **SMALL[architecture]}
    folder.joinpath("config.json").write_text(json.dumps(small))
    values = {"model": {"type": "hf", "config": str(folder), "max_position_embeddings": 130}}
    values |= {"dataset": {"max_seq_length": 130}, "datacollator": {"pack_sequences": architecture in PACKED}}
    values |= {"trainer": {"mixed_precision": "no", "torch_compile": False}, **sections}
    torch.manual_seed(3)
    return build_backbone(from_dict(values), TOKENIZER, 128, WORLD, auto_class, settings or {})


def packed(lengths=LENGTHS):
    return packed_rows.packed(lengths)


def test_a_packed_document_is_the_document_alone(backbone):
    backbone.model.eval()
    packed_rows.assert_states_of_documents_alone(backbone, packed(), 1e-6)


def test_a_step_records_the_kernel_and_has_gradients_of_the_documents_alone(backbone):
    backbone.model.eval()
    packed_rows.assert_gradients_of_documents_alone(backbone, packed())


def test_an_unknown_argument_of_attention_is_an_error_by_name(tmp_path):
    encoder, row = build("bert", tmp_path).model.base_model, packed((3, 4))
    inputs = {"cu_seq_lens_q": row["cu_seqlens"], "max_length_q": 4, "kernel": "sdpa"}
    inputs |= {"input_ids": row["input_ids"][None], "position_ids": row["position_ids"][None]}
    encoder(**inputs, s_aux=None)
    with pytest.raises(ProjectError, match="BertSelfAttention passes s_aux, which packed attention does not"):
        encoder(**inputs, s_aux=torch.ones(4))


def test_dropout_of_attention_acts_in_packed_rows(tmp_path):
    backbone, row = build("bert", tmp_path), packed()
    for module in backbone.model.modules():
        if isinstance(module, torch.nn.Dropout) and not hasattr(module, "is_attention"):
            module.p = 0.0
    still = backbone.hidden(row)
    for block in backbone.blocks:
        block.attention.self.dropout.p = 0.5
    assert not torch.allclose(backbone.hidden(row), still)


POOLED = {"pooling": "cls", "num_labels": 3, "classifier_dropout": 0.5}
TAGGED = {"num_labels": 3, "classifier_dropout": 0.5, "id2label": {0: "O", 1: "B", 2: "I"}}


def in_rows(row):
    ids = row["input_ids"].split(LENGTHS)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    rows = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=1)
    positions = torch.arange(max(LENGTHS)).expand(len(LENGTHS), -1)
    return {"input_ids": rows, "position_ids": positions, "attention_mask": mask, "cu_seqlens": None}


@torch.no_grad()
@pytest.mark.parametrize(
    ("architecture", "auto_class", "settings"),
    [(name, HEADS[1], POOLED | {"pooling": each}) for name in SMALL for each in ARCHITECTURES[name].poolings]
    + [(name, HEADS[2], TAGGED) for name in SMALL],
)
def test_labelled_logits_are_those_of_the_saved_model_in_transformers(
    architecture, auto_class, settings, tmp_path
):
    backbone = build(architecture, tmp_path, auto_class, settings)
    objective, row = LabelledObjective(backbone).eval(), packed()
    write_hf_folder(backbone.model, None, tmp_path / "saved")
    saved, report = getattr(transformers, auto_class).from_pretrained(
        tmp_path / "saved", output_loading_info=True
    )
    assert not any(report.values())
    logits = objective.logits(row if architecture in PACKED else in_rows(row))
    if auto_class == HEADS[2]:
        logits = logits.split(LENGTHS) if architecture in PACKED else logits
    for ours, ids in zip(logits[: len(LENGTHS)], row["input_ids"].split(LENGTHS), strict=True):
        theirs = saved(ids[None]).logits[0]
        torch.testing.assert_close(ours[: len(theirs)], theirs, atol=1e-5, rtol=1e-5)
    assert not torch.equal(objective.logits(in_rows(row)), objective.train().logits(in_rows(row)))


@pytest.mark.parametrize("architecture", SMALL)
def test_a_new_head_on_an_encoder_is_reported(architecture, tmp_path):
    source = build(architecture, tmp_path)
    source.model.base_model.save_pretrained(tmp_path / "encoder")
    source.model.save_pretrained(tmp_path / "masked")
    folder = tmp_path / "other"
    folder.mkdir()
    started = build(architecture, folder, HEADS[1], POOLED)
    of_head = {name for name, _ in started.model.named_parameters() if name.startswith(started.head_parts)}
    for name in ("encoder", "masked"):
        initialized = {*started.load(tmp_path / name).initialized}
        # The dense layer of a ModernBERT is also that of its head of masked words.
        assert initialized <= of_head
        assert {each for each in of_head if "classifier." in each} <= initialized
        same = source.model.get_input_embeddings().weight == started.model.get_input_embeddings().weight
        assert same.all()
    with pytest.raises(ProjectError, match="lacks weights of the model"):
        source.load(tmp_path / "encoder")


@pytest.mark.parametrize("architecture", SMALL)
def test_a_classifier_of_the_same_labels_in_another_order_is_reordered(architecture, tmp_path):
    names = {"id2label": {0: "no", 1: "yes"}}, {"id2label": {0: "yes", 1: "no"}}
    source, started = (
        build(architecture, tmp_path, HEADS[1], POOLED | {"num_labels": 2} | of) for of in names
    )
    source.model.save_pretrained(tmp_path / "saved")
    start_from(tmp_path / "saved", started)
    hidden = torch.randn(3, 32)
    logits = [each.head(hidden) for each in (source, started) if each.model.eval()]
    torch.testing.assert_close(logits[1], logits[0].flip(-1))


WITH_LAYOUTS = [name for name in DECODERS if name != "gpt2"]  # its weights are transposed


@pytest.mark.parametrize("split", ["projections", "heads"])
@pytest.mark.parametrize("architecture", [*SMALL, *WITH_LAYOUTS])
def test_muon_trains_every_matrix_of_the_blocks(architecture, split, tmp_path):
    is_decoder = architecture in DECODERS
    more = {"use_qk_norm": False} if architecture == "cohere" else {}  # norms of heads are no matrices
    backbone = (
        test_decoders.build(architecture, tmp_path, **more) if is_decoder else build(architecture, tmp_path)
    )
    config = OptimizerConfig(name="muon", muon_split=split, muon_adjust_lr_fn="original", weight_decay=0.0)
    optimizer = build_optimizer(config, backbone.model, backbone.layouts)
    names = {parameter: name for name, parameter in backbone.model.named_parameters()}
    groups = [group for group in optimizer.param_groups if group["rule"] == "muon"]
    by_muon = {names[each] for group in groups for each in group["params"]}
    assert by_muon == {
        name for each, name in names.items() if each.ndim == 2 and ("layer." in name or "layers." in name)
    }
    ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    rows = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    before = {name: each.detach().clone() for each, name in names.items()}
    backbone.hidden(rows).square().mean().backward()
    optimizer.step()
    for each, name in names.items():
        if name in by_muon:
            assert not torch.equal(each, before[name]), name


def test_stacked_projections_are_orthogonalized_as_three_matrices(tmp_path):
    """The update of a ModernBERT's Wqkv is that of three matrices, one after the other."""
    weight = torch.randn(3 * 32, 32, generator=torch.Generator().manual_seed(1))
    parts = split_rows(weight, STACKED_QKV, 4)
    assert torch.equal(parts, torch.stack(weight.chunk(3)))
    assert torch.equal(join_rows(parts, STACKED_QKV, 4), weight)
    heads = split_rows(weight, BY_HEAD[STACKED_QKV], 4)
    assert torch.equal(heads[5], weight[40:48])


def test_muon_refuses_a_model_without_layouts_by_name(tmp_path):
    backbone = build("bert", tmp_path)
    undeclared = replace(backbone, matrix_layouts={})
    partly = replace(backbone, matrix_layouts={"output.dense.weight": Layout(WHOLE)})
    for each, problem in (
        (undeclared, "no layouts are declared for the matrices of a BertForMaskedLM"),
        (
            partly,
            r"no layout is declared for attention\.self\.query\.weight in the blocks of a BertForMaskedLM",
        ),
    ):
        with pytest.raises(ProjectError, match=problem) as caught:
            build_optimizer(OptimizerConfig(name="muon"), each.model, each.layouts)
        assert (caught.value.code, caught.value.place) == ("MOD005", "optimizer.name")
