"""Encoders of transformers: trained, resumed to the last bit, exported, and refused where they cannot run."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from neobert.config import from_dict
from neobert.errors import ProjectError
from neobert.families.build import build_masked_lm
from neobert.families.table import shape_of
from tests.killed_run import killed_before
from tests.training.conftest import TINY

SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
BERT = {"type": "hf", "architecture": "bert", **SIZES}
PADDED = {"pack_sequences": False}
SAVED_OFTEN = {"save_steps": 4, "save_total_limit": 0, "max_steps": 20, "logging_steps": 1, "eval_steps": 10}
TOKENIZER = SimpleNamespace(pad_id=0, cls_id=2, sep_id=3)
WORLD = SimpleNamespace(device=torch.device("cpu"), compute_dtype=torch.float32, size=1)


@pytest.fixture
def modernbert(tmp_path):
    """A config.json as somebody might download it, with a map to code that must not run."""
    file = tmp_path / "config.json"
    values = {
        "model_type": "modernbert",
        "architectures": ["ModernBertForMaskedLM"],
        "auto_map": {"AutoConfig": "configuration_other.OtherConfig"},
        "local_attention": 8,
        "max_position_embeddings": 32,
        "vocab_size": 50_368,
        "pad_token_id": 50_283,
        **SIZES,
    }
    file.write_text(json.dumps(values), encoding="utf-8")
    return {"type": "hf", "config": str(file)}


@pytest.fixture(params=["bert", "modernbert"])
def section(request, modernbert):
    """The section `model` of each architecture; TINY's sizes are those of another family."""
    return BERT if request.param == "bert" else modernbert


@pytest.fixture
def hf_run(make_run, section, monkeypatch):
    """Write a run with the section alone, and with dropout where the architecture has it."""
    monkeypatch.setitem(TINY, "model", section)

    def write(name="run", **trainer):
        return make_run(name, datacollator=PADDED, trainer=SAVED_OFTEN | trainer)

    return write


def test_a_run_that_was_killed_resumes_to_the_last_bit(hf_run, run, exact):

    whole = hf_run("whole")
    assert run(whole) == 0
    expected = exact(whole)
    losses = [line["train/loss"] for line in expected if "train/loss" in line]
    assert losses[-1] < losses[0] - 0.2
    killed = hf_run("killed", async_save=False)
    with killed_before(10):
        run(killed)
    assert run(killed) == 0
    assert exact(killed) == expected
    folder = killed / "checkpoints" / "20"
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert "auto_map" not in written
    assert not list(folder.glob("*.py"))
    model, report = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    row = tokenizer("ba da", return_tensors="pt")
    assert model(**row).logits.shape[-1] == model.config.vocab_size == 128
    assert model.config.pad_token_id == tokenizer.pad_token_id
    config = from_dict(json.loads((killed / "resolved.json").read_text(encoding="utf-8")))
    assert shape_of(config, 128).parameters.total == model.num_parameters()


def build(section, **trainer):
    values = {"model": section, "datacollator": PADDED, "dataset": {"max_seq_length": 32}}
    values["trainer"] = {"mixed_precision": "no", **trainer}
    torch.manual_seed(3)
    return build_masked_lm(from_dict(values), TOKENIZER, 128, WORLD)


def padded_batch():
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(5, 128, (3, 20), generator=generator)
    mask = torch.arange(20)[None] < torch.tensor([20, 13, 7])[:, None]
    labels = torch.where((torch.rand((3, 20), generator=generator) < 0.3) & mask, ids, -100)
    positions = torch.arange(20).expand(3, 20)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}, labels


@pytest.mark.parametrize("masked_only", [True, False])
def test_the_loss_and_gradients_are_those_of_transformers(section, masked_only):
    built = build(section, masked_logits_only_loss=masked_only)
    built.objective.eval()
    inputs, labels = padded_batch()
    num_targets = int((labels != -100).sum())
    loss = built.objective(num_targets, labels, **inputs, cu_seqlens=None, max_seqlen=20) / num_targets
    expected = built.model(**inputs, labels=labels).loss
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert built.objective.attention_ran == dict.fromkeys(range(3), "sdpa")
    ours = torch.autograd.grad(loss, list(built.model.parameters()))
    theirs = torch.autograd.grad(expected, list(built.model.parameters()))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_recomputed_blocks_give_the_same_gradients(section):
    inputs, labels = padded_batch()
    gradients = []
    for trainer in ({}, {"gradient_checkpointing": True, "gradient_checkpointing_every_n": 2}):
        built = build(section, **trainer)
        torch.manual_seed(7)  # of dropout
        built.objective(int((labels != -100).sum()), labels, **inputs).backward()
        gradients.append([each.grad for each in built.model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_padding_changes_nothing(section):
    built = build(section)
    built.objective.eval()
    inputs, labels = padded_batch()
    score = built.objective.evaluate(int((labels != -100).sum()), labels, **inputs)
    inputs["input_ids"] = torch.where(inputs["attention_mask"], inputs["input_ids"], 77)
    other = built.objective.evaluate(int((labels != -100).sum()), labels, **inputs)
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
    with pytest.raises(ProjectError, match="the weights cannot be loaded") as caught:
        started.load(folder)
    assert caught.value.code == "EXP005"


def test_weights_of_a_smaller_model_are_refused(tmp_path):
    build(BERT).model.save_pretrained(tmp_path)
    deeper = build(BERT | {"num_hidden_layers": 4})
    with pytest.raises(ProjectError, match="lacks weights of the model") as caught:
        deeper.load(tmp_path)
    assert caught.value.code == "EXP005"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"datacollator": {"pack_sequences": True}}, "datacollator.pack_sequences"),
        ({"optimizer": {"name": "muonclip"}}, "optimizer.name"),
        ({"trainer": {"torch_compile": True}}, "trainer.torch_compile"),
    ],
)
def test_the_trainer_refuses_what_the_family_cannot_do(changes, key):
    config = from_dict({"model": BERT, "datacollator": PADDED, **changes})
    with pytest.raises(ProjectError, match=r"model\.type hf") as caught:
        build_masked_lm(config, TOKENIZER, 128, WORLD)
    assert caught.value.place == key
