"""Encoders of transformers: trained, resumed to the last bit, exported, and refused where they cannot run."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from neobert.config import from_dict
from neobert.errors import ProjectError
from neobert.families.backbone import build_backbone
from neobert.families.hf.architectures import bert
from neobert.families.hf.architectures.table import ARCHITECTURES
from neobert.families.hf.initial_weights import refuse_other_weights
from neobert.families.table import model_shape
from neobert.objectives import TokenObjective
from neobert.probes.attention_suite import SpecialTokenIds
from neobert.runfiles.weights_header import tensor_shapes
from tests.families.layouts import SMALL, dropouts
from tests.refusals import refusal_of
from tests.training.conftest import TINY

SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
BERT = {"type": "hf", "architecture": "bert", **SIZES}
PADDED = {"pack_sequences": False}
SAVED_OFTEN = {"save_steps": 4, "save_total_limit": 0, "max_steps": 20, "logging_steps": 1, "eval_steps": 10}
TOKENIZER = SpecialTokenIds(pad_id=1)
WORLD = SimpleNamespace(device=torch.device("cpu"), compute_dtype=torch.float32, size=1)


@pytest.fixture
def modernbert(tmp_path):
    """A config.json as somebody might download it, with a map to code that must not run."""
    return described(
        tmp_path,
        "modernbert",
        architectures=["ModernBertForMaskedLM"],
        auto_map={"AutoConfig": "configuration_other.OtherConfig"},
        vocab_size=50_368,
        pad_token_id=50_283,
    )


def described(folder, architecture, **more):
    """The section `model` of a config.json; TINY's sizes are those of another family."""
    file = folder / "config.json"
    positions = 32 + 2 * (ARCHITECTURES[architecture].padding is not None)
    values = {"model_type": architecture, "max_position_embeddings": positions, **SMALL[architecture], **more}
    file.write_text(json.dumps(values), encoding="utf-8")
    return {"type": "hf", "config": str(file)}


@pytest.fixture(params=SMALL)
def section(request, tmp_path):
    return described(tmp_path, request.param)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_a_run_that_was_killed_resumes_to_the_last_bit(name, modernbert, killed_run, exact, monkeypatch):
    """A run with the section alone: padded with dropout for BERT, packed for ModernBERT."""
    section = BERT if name == "bert" else modernbert
    monkeypatch.setitem(TINY, "model", section)
    whole = killed_run(10, datacollator={"pack_sequences": section is not BERT}, trainer=SAVED_OFTEN)
    losses = [line["train/loss"] for line in exact(whole) if "train/loss" in line]
    assert losses[-1] < losses[0] - 0.2
    folder = whole / "checkpoints" / "20"
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert "auto_map" not in written
    assert not list(folder.glob("*.py"))
    model, report = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    row = tokenizer("ba da", return_tensors="pt")
    assert model(**row).logits.shape[-1] == model.config.vocab_size == 128
    assert model.config.pad_token_id == tokenizer.pad_token_id
    config = from_dict(json.loads((whole / "resolved.json").read_text(encoding="utf-8")))
    assert model_shape(config, 128).parameters.total == model.num_parameters()


def build(section, **trainer):
    values = {"model": section, "datacollator": PADDED, "dataset": {"max_seq_length": 32}}
    values["trainer"] = {"mixed_precision": "no", "torch_compile": False, **trainer}
    torch.manual_seed(3)
    return masked_lm(from_dict(values))


def masked_lm(config):
    return build_backbone(config, TOKENIZER, 128, WORLD, "AutoModelForMaskedLM", {})


def padded_batch():
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(5, 128, (3, 20), generator=generator)
    mask = torch.arange(20)[None] < torch.tensor([20, 13, 7])[:, None]
    labels = torch.where((torch.rand((3, 20), generator=generator) < 0.3) & mask, ids, -100)
    positions = torch.arange(20).expand(3, 20)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}, labels


def test_dropout_of_the_section_is_that_of_the_blocks(section):
    values = json.loads(Path(section["config"]).read_text())
    Path(section["config"]).write_text(json.dumps(values | dropouts(values["model_type"])))
    architecture = ARCHITECTURES[values["model_type"]]
    batch, _ = padded_batch()
    for probability in (0.0, 0.3):
        own = {} if architecture.dropout is None else {"dropout": probability}
        backbone = build(section | own | {"attention_dropout": 0.0})
        one, other = (backbone.hidden(batch) for _ in range(2))
        assert torch.equal(one, other) == (not own or not probability)


@pytest.mark.parametrize("masked_only", [True, False])
def test_the_loss_and_gradients_are_those_of_transformers(section, masked_only):
    built = build(section)
    objective = TokenObjective(built, masked_only).eval()
    inputs, labels = padded_batch()
    num_targets = int((labels != -100).sum())
    loss = objective(num_targets, labels, **inputs, cu_seqlens=None, max_seqlen=20) / num_targets
    theirs = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"].long()}
    expected = built.model(**theirs, labels=labels).loss
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert objective.attention_used == dict.fromkeys(range(3), built.attention)
    ours = torch.autograd.grad(loss, list(built.model.parameters()))
    theirs = torch.autograd.grad(expected, list(built.model.parameters()))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("section", [name for name in SMALL if name != "mpnet"], indirect=True)
def test_recomputed_blocks_give_the_same_gradients(section):
    inputs, labels = padded_batch()
    gradients = []
    for trainer in ({}, {"gradient_checkpointing": True, "gradient_checkpointing_every_n": 2}):
        built = build(section, **trainer)
        torch.manual_seed(7)  # of dropout
        TokenObjective(built, True)(int((labels != -100).sum()), labels, **inputs).backward()
        gradients.append([each.grad for each in built.model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_padding_changes_nothing(section):
    objective = TokenObjective(build(section), True).eval()
    inputs, labels = padded_batch()
    score = objective.evaluate(int((labels != -100).sum()), labels, **inputs)
    inputs["input_ids"] = torch.where(inputs["attention_mask"], inputs["input_ids"], 77)
    other = objective.evaluate(int((labels != -100).sum()), labels, **inputs)
    torch.testing.assert_close(score.loss_sum, other.loss_sum)


def test_a_run_starts_from_the_weights_of_a_folder(section, tmp_path):
    folder = tmp_path / "weights"
    built = build(section)
    built.model.save_pretrained(folder)
    started = build({"type": "hf", "pretrained_checkpoint": str(folder)})
    changed = [each.add_(1) for each in started.model.state_dict().values() if each.is_floating_point()]
    assert changed
    started.load(folder)
    for name, each in built.model.state_dict().items():
        assert torch.equal(each, started.model.state_dict()[name]), name
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    refusal_of(started.load, "EXP005", "the weights cannot be loaded", folder)
    cut = (folder / "other.safetensors").read_bytes()[:-9]
    (folder / "model.safetensors").write_bytes(cut)
    with pytest.raises(ProjectError, match=rf"model.safetensors: .* it has {len(cut):,} of"):
        started.load(folder)


def test_weights_of_a_smaller_model_are_refused(tmp_path):
    build(BERT).model.save_pretrained(tmp_path)
    deeper = build(BERT | {"num_hidden_layers": 4})
    refusal_of(deeper.load, "EXP005", "lacks weights of the model", tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"prefix": "brt."}, "has no such weights: brt.embeddings.word_embeddings.weight [128, 16], brt."),
        ({"embedding": "embeddings.words"}, "has no such weights: bert.embeddings.words.weight [128, 16]"),
        ({"blocks": "encoder.layers"}, "has no such weights: bert.encoder.layers.0.attention.self.query"),
    ],
    ids=["prefix", "embedding", "blocks"],
)
def test_a_description_of_another_model_is_refused(change, problem, monkeypatch):
    monkeypatch.setattr(bert, "BERT", bert.BERT._replace(**change))
    with pytest.raises(ProjectError, match=f"the bert of transformers .*{re.escape(problem)}") as caught:
        build(BERT)
    assert caught.value.hint == "correct the description of bert in neobert/families/hf/architectures"


def compared(section, folder, **more):
    model = section | {"pretrained_checkpoint": str(folder)}
    refuse_other_weights(from_dict({"model": model, **more}), folder)


def test_the_headers_of_fitting_weights_are_accepted(section, tmp_path):
    """Those that transformers writes, whole or in shards, with the encoder alone under its own names."""
    model = build(section).model
    for name, size in (("whole", "1GB"), ("shards", "20KB")):
        model.save_pretrained(tmp_path / name, max_shard_size=size)
        compared({"type": "hf", "config": str(tmp_path / name)}, tmp_path / name)
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    model.base_model.save_pretrained(tmp_path / "base")
    with pytest.raises(ProjectError, match=r"lacks weights of the model: [a-z_]+\.\* ") as caught:
        compared({"type": "hf", "config": str(tmp_path / "base")}, tmp_path / "base")
    assert "a checkpoint with a masked-language-model head" in caught.value.hint
    of_pairs = {"task": "contrastive", "contrastive": {"masked_lm_weight": 0.1}}
    with pytest.raises(ProjectError, match=r"lacks weights of the model: [a-z_]+\.\* ") as caught:
        compared({"type": "hf", "config": str(tmp_path / "base")}, tmp_path / "base", **of_pairs)
    assert caught.value.hint.startswith("set contrastive.masked_lm_weight to 0, or set model.pretrained_ch")


def test_the_headers_of_other_weights_are_refused_before_a_launch(section, tmp_path):
    build(section).model.save_pretrained(tmp_path)
    saved = {"type": "hf", "config": str(tmp_path)}
    values = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    values = {name: value for name, value in values.items() if name not in ("layer_types", "type_vocab_size")}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    for change, problem in (
        ({"num_hidden_layers": 4}, r"lacks weights of the model: .*layers?\.3\."),
        ({"intermediate_size": 64}, r"\[(48|96), 32\], but the model has \[(64|128), 32\]"),
    ):
        with pytest.raises(ProjectError, match=problem) as caught:
            compared(saved | change, tmp_path)
        hint = f"set model.{next(iter(change))}, model.config to null"
        assert (caught.value.code, caught.value.hint) == ("EXP005", hint)
    (tmp_path / "config.json").write_text(json.dumps(values | {"vocab_size": 77}), encoding="utf-8")
    with pytest.raises(ProjectError, match=r"but the model has \[77, ") as caught:
        compared({"type": "hf"}, tmp_path)
    assert caught.value.hint == f"correct config.json of {tmp_path}"
    values["model_type"] = "modernbert" if values["model_type"] == "bert" else "bert"
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ProjectError, match="lacks weights of the model") as caught:
        compared(saved, tmp_path)
    assert caught.value.hint == f"set model.pretrained_checkpoint to the weights of a {values['model_type']}"


HEADER = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        (2**60).to_bytes(8, "little"),
        len(HEADER).to_bytes(8, "little") + HEADER[:-1],
        len(HEADER).to_bytes(8, "little") + HEADER + b"123",
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b'{"a":"x"}',
        (17).to_bytes(8, "little") + b'{"a":{"shape":1}}',
        (20).to_bytes(8, "little") + b'{"a":{"shape":[-1]}}',
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
    ],
)
def test_a_header_is_data_and_is_checked(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    refusal_of(tensor_shapes, "EXP004", "is not a readable safetensors file", tmp_path)


def test_a_pointer_of_git_lfs_has_no_weights(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"
    (tmp_path / "model.safetensors").write_bytes(pointer)
    refusal_of(tensor_shapes, "EXP004", "is a pointer of Git LFS", tmp_path)


def test_masks_in_the_files_of_older_decoders_are_no_quantized_weights(tmp_path):
    name = "gpt_neox.layers.0.attention.bias"
    save_file({name: torch.ones(1, 1, 8, 8, dtype=torch.bool)}, tmp_path / "model.safetensors")
    assert tensor_shapes(tmp_path) == {name: (1, 1, 8, 8)}


def test_an_index_names_files_of_its_folder(tmp_path):
    (tmp_path / "other.safetensors").write_bytes(len(HEADER).to_bytes(8, "little") + HEADER + b"1234")
    index = tmp_path / "at" / "model.safetensors.index.json"
    index.parent.mkdir()
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}), encoding="utf-8")
    assert tensor_shapes(tmp_path / "other.safetensors") == {"a": (1,)}
    refusal_of(tensor_shapes, "EXP004", "outside its folder", index.parent)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        (
            {"datacollator": {"pack_sequences": True}, "model": BERT | {"attention": "eager"}},
            "model.attention",
        ),
        ({"model": BERT | {"num_key_value_heads": 1}}, "model.num_key_value_heads"),
        ({"task": "classification", "classification": {"pooling": "avg"}}, "classification.pooling"),
        ({"optimizer": {"name": "muonclip"}}, "optimizer.name"),
        (
            {"datacollator": {"pack_sequences": True}, "model": BERT | {"architecture": "mpnet"}},
            "datacollator.pack_sequences",
        ),
        (
            {"trainer": {"gradient_checkpointing": True}, "model": BERT | {"architecture": "mpnet"}},
            "trainer.gradient_checkpointing",
        ),
        (
            {"trainer": {"torch_compile": True}, "model": BERT | {"architecture": "modernbert"}},
            "trainer.torch_compile",
        ),
    ],
)
def test_the_trainer_refuses_what_the_family_cannot_do(changes, key):
    config = from_dict({"model": BERT, "datacollator": PADDED, **changes})
    assert refusal_of(masked_lm, "MOD005", "model.type hf", config).place == key
