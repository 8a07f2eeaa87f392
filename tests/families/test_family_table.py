"""The table of families against the schema, and what a family gets without code of its own."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.families.backbone import build_backbone
from neobert.families.neobert.spec import NEOBERT
from neobert.families.table import FAMILIES, unsupported_keys

CONFIG = RunConfig()


@pytest.fixture
def own_family(monkeypatch):
    """A family as a newcomer writes one: it yields no unsupported key, and its blocks are plain modules."""
    module = SimpleNamespace(build=lambda *_: SimpleNamespace(blocks=[nn.Linear(1, 1)]))
    monkeypatch.setitem(sys.modules, "own_family", module)
    own = NEOBERT._replace(module="own_family", unsupported=lambda _: iter(()))
    monkeypatch.setitem(FAMILIES, NEOBERT.name, own)


def build(config):
    return build_backbone(config, None, 8, None, "AutoModelForMaskedLM", {})


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
def test_a_new_family_is_built():
    assert list(unsupported_keys(CONFIG)) == []
    assert isinstance(build(CONFIG).blocks[0], torch.nn.Module)
