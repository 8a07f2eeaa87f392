"""The table of families against the schema, and what a family gets without code of its own."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM

from neobert.config.schema import RunConfig
from neobert.encoding.model import packed_backbone
from neobert.errors import ProjectError
from neobert.families.backbone import build_backbone
from neobert.families.hf.architecture import MASKED
from neobert.families.hf.build import read_model
from neobert.families.neobert.spec import NEOBERT
from neobert.families.table import FAMILIES, is_causal, unsupported_keys

CONFIG = RunConfig()
SIZES = dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), 8) | {
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
}
OWN_MODULE = """
from transformers import AutoConfig, AutoModelForMaskedLM, BertConfig, BertForMaskedLM


class OwnConfig(BertConfig):
    model_type = "own"


class OwnForMaskedLM(BertForMaskedLM):
    config_class = OwnConfig


AutoConfig.register("own", OwnConfig)
AutoModelForMaskedLM.register(OwnConfig, OwnForMaskedLM)


def inference_backbone(model, device, dtype):
    return type(model).__name__, device, dtype
"""


@pytest.fixture
def own_family(monkeypatch):
    """A family as a newcomer writes one: it yields no unsupported key, and its blocks are plain modules."""
    block = nn.Linear(1, 1)
    module = SimpleNamespace(build=lambda *_: SimpleNamespace(model=block, blocks=[block]))
    monkeypatch.setitem(sys.modules, "families.own.build", module)
    own = NEOBERT._replace(module="families.own.build", unsupported=lambda _: iter(()))
    monkeypatch.setitem(FAMILIES, NEOBERT.name, own)


def build(config, auto_class="AutoModel"):
    return build_backbone(config, None, 8, None, auto_class, {})


def test_each_type_of_the_section_is_a_family():
    sections = get_args(get_type_hints(RunConfig)["model"])
    assert [*FAMILIES] == [section().type for section in sections], "neobert/families/table.py lacks a type"


@pytest.mark.usefixtures("own_family")
@pytest.mark.parametrize(
    ("section", "change", "key"),
    [
        ("optimizer", {"name": "muonclip"}, "optimizer.name"),
        ("trainer", {"gradient_checkpointing": True}, "trainer.gradient_checkpointing"),
    ],
)
def test_a_new_family_ignores_no_key(section, change, key):
    config = replace(CONFIG, **{section: replace(getattr(CONFIG, section), **change)})
    with pytest.raises(ProjectError) as caught:
        build(config)
    assert (caught.value.code, caught.value.place) == ("MOD005", key)


@pytest.mark.usefixtures("own_family")
def test_a_shape_of_another_model_is_refused():
    with pytest.raises(ProjectError, match="the model has 2 parameters, but its shape counts ") as caught:
        build(CONFIG, MASKED)
    assert (caught.value.code, caught.value.hint) == ("MOD006", "correct the shape in families/own")


@pytest.mark.usefixtures("own_family")
def test_a_new_family_is_built():
    assert list(unsupported_keys(CONFIG)) == []
    assert isinstance(build(CONFIG).blocks[0], torch.nn.Module)


def test_a_checkpoint_of_a_new_family_is_loaded_by_its_module(monkeypatch, tmp_path):
    (tmp_path / "module_of_own.py").write_text(OWN_MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    own = NEOBERT._replace(name="own", module="module_of_own", is_causal=True)
    monkeypatch.setitem(FAMILIES, "own", own)
    BertForMaskedLM(BertConfig(**SIZES)).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(settings | {"model_type": "own"}), encoding="utf-8")
    model, absent, unused = read_model(MASKED, tmp_path, "")
    assert (absent, unused, is_causal("own")) == ([], [], True)
    where = (torch.device("cpu"), torch.float32)
    assert packed_backbone(model, MASKED, tmp_path, *where) == ("OwnForMaskedLM", *where)
