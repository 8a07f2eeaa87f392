"""The section `pretraining` of a profile applies to a NeoBERT from random weights, and to nothing else."""

import json
from pathlib import Path

import pytest

from neobert.config import ConfigError, to_dict
from neobert.config.canonical import flatten
from neobert.errors import ProjectError
from profiles.inherit import FOLDERS_ENV
from profiles.recipe import PRETRAINING
from profiles.registry import load_profile, resolve_run

WITH_RECIPE = ("cpu", "gpu")
PRODUCTION = ("2xa100-prod", "8xh200-prod", "a100-prod", "h100-prod", "h200-prod", "l40s-dev")
OTHER = [
    ("task=classification",),
    ("task=token_classification",),
    ("model.pretrained_checkpoint=runs/a",),
    ("model.type=hf", "model.architecture=bert"),
]


@pytest.mark.parametrize("name", WITH_RECIPE)
def test_pretraining_has_the_recipe(name):
    config = resolve_run(name).config
    assert config == load_profile(name).config
    assert config.optimizer.name == "muon"
    assert (config.model.init, config.model.embedding_multiplier) == ("scaled", None)
    assert config.scheduler.final_lr_ratio == 0
    assert resolve_run(name, (), ("optimizer.name=adamw",)).config.optimizer.name == "adamw"


@pytest.mark.parametrize("name", WITH_RECIPE)
@pytest.mark.parametrize("keys", OTHER, ids=" ".join)
def test_other_runs_do_not(name, keys):
    config = resolve_run(name, (), keys).config
    assert config.optimizer.name == "adamw"
    assert config.optimizer.weight_decay == 0.1
    assert config.scheduler.name == "cosine"
    assert config.datacollator.mlm_probability == 0.2
    assert (config.trainer.torch_compile, config.trainer.cuda_graphs) == (False, False)
    assert config.trainer.sequence_length_warmup_percent is None


def test_a_profile_that_builds_on_another_has_the_last_word(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDERS_ENV, str(tmp_path))
    head = "about: {name: mine, kind: development, intent: To try., requires: {device: cpu}}\nextends: cpu\n"
    (tmp_path / "mine.yaml").write_text(f"{head}optimizer: {{weight_decay: 0.3}}\n", encoding="utf-8")
    base, config = resolve_run("cpu").config, resolve_run("mine").config
    assert (config.optimizer.name, config.optimizer.weight_decay) == ("muon", 0.3)
    changed = {key for key, value in flatten(to_dict(base)).items() if flatten(to_dict(config))[key] != value}
    assert changed == {"optimizer.weight_decay", "profile"}

    (tmp_path / "mine.yaml").write_text(f"{head}{PRETRAINING}: null\n", encoding="utf-8")
    config = resolve_run("mine").config
    assert (config.optimizer.name, config.datacollator.mlm_probability) == ("adamw", 0.2)

    (tmp_path / "mine.yaml").write_text(f"{head}{PRETRAINING}: fast\n", encoding="utf-8")
    with pytest.raises(ProjectError, match="pretraining is not a mapping"):
        resolve_run("mine")


def run_file(folder: Path, **content: object) -> Path:
    file = folder / "run.yaml"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def test_a_run_file_has_no_recipe(tmp_path):
    for value in ({}, {"optimizer": {"lr": 1e-3}}, 3):
        with pytest.raises(ConfigError, match="CFG001 pretraining is not a key"):
            resolve_run(None, [run_file(tmp_path, profile="cpu", pretraining=value)])
        with pytest.raises(ConfigError, match="CFG001 pretraining is not a key"):
            resolve_run("cpu", (), (f"pretraining={json.dumps(value)}",))


@pytest.mark.parametrize("name", PRODUCTION)
def test_null_in_a_run_file_or_an_argument_is_the_published_recipe(name, tmp_path):
    without = resolve_run(None, [run_file(tmp_path, profile=name, pretraining=None)])
    config = without.config
    assert (config.optimizer.name, config.optimizer.lr, config.optimizer.betas) == (
        "adamw",
        6e-4,
        (0.9, 0.95),
    )
    assert (config.scheduler.name, config.scheduler.final_lr_ratio) == ("cosine", 0.1)
    assert (config.model.init, config.model.embedding_multiplier) == ("published", 1)
    assert config.datacollator.mlm_probability == 0.2
    assert config.trainer.sequence_length_warmup_percent is None
    assert resolve_run(name, (), ("pretraining=null",)).digest == without.digest
