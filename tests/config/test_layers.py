"""Layers over each other: a nearer key takes the place of the farther ones that it replaces."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from neobert.config import (
    COMMAND_LINE,
    ConfigError,
    Resolution,
    RunConfig,
    load_document,
    parse_overrides,
    resolve,
    sections,
    to_dict,
)
from neobert.config.keys import all_keys, keys_replacing_others

FAR = "dataset: {name: far, config: small, validation_split: 0.1}\n"


@pytest.fixture
def layered(tmp_path: Path) -> Callable[..., Resolution]:
    def layered(*texts: str, overrides: Sequence[str] = ()) -> Resolution:
        files = [tmp_path / f"{number}.yaml" for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text, encoding="utf-8")
        return resolve([load_document(file, "profile") for file in files], parse_overrides(overrides))

    return layered


def test_a_nearer_path_replaces_a_name_with_its_configuration(layered):
    for dataset in (
        layered(FAR, "dataset: {path: near}\n").config.dataset,
        layered(FAR, overrides=["dataset.path=near"]).config.dataset,
    ):
        assert (dataset.path, dataset.name, dataset.config) == ("near", None, None)


def test_a_slice_belongs_to_the_text_of_its_layer(layered):
    demo = 'dataset: {name: far, train_split: "train[:9]"}\n'
    for near in ("path: near", "name: near", "mixture: [{path: near, weight: 1}]"):
        assert layered(demo, f"dataset: {{{near}}}\n").config.dataset.train_split == "train"
    assert layered(demo, 'dataset: {path: near, train_split: "train[:5]"}\n').config.dataset.train_split == (
        "train[:5]"
    )
    assert layered(demo, "dataset: {max_seq_length: 8}\n").config.dataset.train_split == "train[:9]"


def test_a_nearer_name_replaces_a_path(layered):
    dataset = layered("dataset: {path: far}\n", "dataset: {name: near}\n").config.dataset
    assert (dataset.path, dataset.name) == (None, "near")


def test_the_nearest_way_to_hold_out_text_holds(layered):
    dataset = layered(FAR, "dataset: {eval_samples: 5}\n").config.dataset
    assert (dataset.eval_samples, dataset.validation_split) == (5, None)
    dataset = layered("dataset: {eval_samples: 5}\n", FAR).config.dataset
    assert (dataset.eval_samples, dataset.validation_split) == (None, 0.1)


def test_the_nearest_length_of_a_warm_up_holds(layered):
    percent = "scheduler: {warmup_percent: 6, decay_percent: 20}\n"
    near = layered(percent, "scheduler: {warmup_steps: 0, decay_steps: 50}\n").config.scheduler
    assert (near.warmup_steps, near.warmup_percent) == (0, None)
    assert (near.decay_steps, near.decay_percent) == (50, None)
    near = layered("scheduler: {warmup_steps: 9}\n", percent).config.scheduler
    assert (near.warmup_steps, near.warmup_percent) == (0, 6)


def test_what_one_layer_gives_together_stays_together(layered):
    both = "dataset: {path: near, name: near}\n"
    assert layered(FAR, both).config.dataset.name == "near"


def test_null_replaces_nothing(layered):
    assert layered(FAR, "dataset: {path: null, eval_samples: null}\n").config.dataset.name == "far"


def test_what_was_replaced_has_no_origin(layered):
    origins = layered(FAR, "dataset: {path: near}\n").origins
    assert origins["dataset.name"].kind == "default"
    assert origins["dataset.path"].kind == "profile"


def test_every_key_that_is_replaced_exists():
    replaced = {".".join(map(str, path)) for paths in keys_replacing_others().values() for path in paths}
    assert replaced <= set(all_keys())


READ = {"pretrain": frozenset(sections()) - {"scheduler", "watchdog"}, "other": frozenset(sections())}


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("scheduler: {warmup_steps: 5}\n", (), "section scheduler is not used by task pretrain"),
        ("{}\n", ("scheduler.name=linear",), "section scheduler is not used by task pretrain"),
        ("scheduler: {warmup_steps: 0}\n", (), "section scheduler is not used by task pretrain"),
        ("task: pretrain\nscheduler: {warmup_steps: 0}\n", (), ""),
        ("trainer: {max_steps: 5}\n", (), ""),
    ],
)
def test_a_section_that_the_task_does_not_read_is_refused(tmp_path, text, overrides, message):
    profile, file = tmp_path / "profile.yaml", tmp_path / "run.yaml"
    profile.write_text("scheduler: {final_lr_ratio: 0.5}\n")
    file.write_text(text)
    layers = [load_document(profile, "profile"), load_document(file)]
    try:
        resolve(layers, parse_overrides(overrides), READ)
        found = []
    except ConfigError as error:
        found = list(error.issues)
    assert [issue.message for issue in found] == [message] * bool(message)
    assert all(issue.hint == "remove section scheduler, or write task: other" for issue in found)
    assert all(issue.file in (str(file), COMMAND_LINE) for issue in found)


def test_the_defaults_of_a_section_that_the_task_does_not_read_may_be_written_out(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(to_dict(RunConfig())))
    assert resolve([load_document(file)], (), READ).config.scheduler == RunConfig().scheduler
