"""Encoders without a head: built, loaded below and without a head, and weights that do not train."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from neobert.config import from_dict
from neobert.errors import ProjectError
from neobert.export import write_hf_folder
from neobert.families.backbone import build_backbone
from neobert.families.neobert.trained_settings import refuse_other_model
from neobert.model import NeoBERT
from tests.families.layouts import SMALL
from tests.families.test_hf import TOKENIZER, WORLD, described
from tests.training.conftest import TINY

NAMES = ["neobert", *SMALL]
MASKED, TEXTS = "AutoModelForMaskedLM", "AutoModelForSequenceClassification"
IDS = torch.arange(4, 12)[None]


@pytest.fixture
def build(tmp_path_factory):
    return partial(built, tmp_path_factory.mktemp("model"))


def built(folder, name, auto_class):
    torch.manual_seed(0)
    section = TINY["model"] if name == "neobert" else described(folder, name)
    values = {"model": section, "dataset": {"max_seq_length": 32}, "tokenizer": {"vocab_size": 128}}
    config = from_dict(values | {"datacollator": {"pack_sequences": False}})
    return build_backbone(config, TOKENIZER, 128, WORLD, auto_class, {})


def hidden(backbone):
    backbone.model.eval()
    mask = torch.ones_like(IDS, dtype=torch.bool)
    return backbone.hidden({"input_ids": IDS, "attention_mask": mask})


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_of_a_bare_encoder_gets_a_gradient(build, name):
    backbone = build(name, "AutoModel")
    assert backbone.head is None
    hidden(backbone).square().sum().backward()
    assert [name for name, each in backbone.model.named_parameters() if each.grad is None] == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("source", "target"), [(MASKED, "AutoModel"), ("AutoModel", "AutoModel"), ("AutoModel", TEXTS)]
)
def test_weights_are_loaded_with_a_head_and_without(build, tmp_path, name, source, target):
    trained, fresh = build(name, source), build(name, target)
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.normal_()
    write_hf_folder(trained.model, None, tmp_path)
    report = fresh.load(tmp_path)
    assert torch.equal(hidden(fresh), hidden(trained))
    assert bool(report.unused) == (source == MASKED)
    assert bool(report.initialized) == (target == TEXTS)


def test_a_bare_encoder_refuses_a_checkpoint_that_lacks_its_weights(build, tmp_path):
    trained = build("bert", "AutoModel")
    trained.model.encoder.layer = trained.model.encoder.layer[:2]
    write_hf_folder(trained.model, None, tmp_path)
    with pytest.raises(ProjectError, match="lacks weights of the model"):
        build("bert", "AutoModel").load(tmp_path)


def test_masked_words_are_mixed_in_only_with_a_trained_head(build, tmp_path):
    section = {"masked_lm_weight": 0.1}
    config = from_dict({"task": "contrastive", "contrastive": section, "model": TINY["model"]})
    for name, auto_class in (("whole", MASKED), ("bare", "AutoModel")):
        write_hf_folder(build("neobert", auto_class).model, None, tmp_path / name)
    refuse_other_model(config, tmp_path / "whole")
    with pytest.raises(ProjectError, match="have no masked-language-model head") as caught:
        refuse_other_model(config, tmp_path / "bare")
    assert caught.value.hint.startswith("set contrastive.masked_lm_weight to 0, or")
    without = replace(config, contrastive=replace(config.contrastive, masked_lm_weight=0.0))
    refuse_other_model(without, tmp_path / "bare")
    # A tied head is the embedding, which every folder has.
    refuse_other_model(
        replace(config, model=replace(config.model, tie_word_embeddings=True)), tmp_path / "bare"
    )


def test_weights_without_a_gradient_are_refused_at_step_1(make_run, run, monkeypatch):
    made = NeoBERT.__init__

    def with_a_spare_layer(self, config):
        made(self, config)
        self.spare = nn.Linear(4, 4)

    monkeypatch.setattr(NeoBERT, "__init__", with_a_spare_layer)
    with pytest.raises(ProjectError) as refused:
        run(make_run())
    assert (refused.value.code, refused.value.place) == ("TRN003", "task")
    assert "2 weights of the model got no gradient in step 1: model.spare.weight, model.spare.bias" in str(
        refused.value
    )


def test_a_task_without_a_head_is_refused_without_a_preflight(make_run, run):
    with pytest.raises(ProjectError, match="NeoBERT has no head for task causal") as refused:
        run(make_run(task="causal"))
    assert (refused.value.code, refused.value.place) == ("MOD005", "task")
