"""Layers over each other: a nearer key takes the place of the farther ones that it replaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from neobert.config import Resolution, load_document, parse_overrides, resolve
from neobert.config.keys import all_keys, replacing_keys

FAR = "dataset: {name: far, config: small, validation_split: 0.1}\n"


@pytest.fixture
def layered(tmp_path: Path) -> Callable[..., Resolution]:
    def layered(*texts: str, overrides: Sequence[str] = ()) -> Resolution:
        files = [tmp_path / f"{number}.yaml" for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text, encoding="utf-8")
        return resolve([load_document(file, "profile") for file in files], parse_overrides(overrides))

    return layered


def test_a_nearer_path_replaces_a_name_with_its_configuration(layered: Callable[..., Resolution]) -> None:
    for dataset in (
        layered(FAR, "dataset: {path: near}\n").config.dataset,
        layered(FAR, overrides=["dataset.path=near"]).config.dataset,
    ):
        assert (dataset.path, dataset.name, dataset.config) == ("near", None, None)


def test_a_nearer_name_replaces_a_path(layered: Callable[..., Resolution]) -> None:
    dataset = layered("dataset: {path: far}\n", "dataset: {name: near}\n").config.dataset
    assert (dataset.path, dataset.name) == (None, "near")


def test_the_nearest_way_to_hold_out_text_holds(layered: Callable[..., Resolution]) -> None:
    dataset = layered(FAR, "dataset: {eval_samples: 5}\n").config.dataset
    assert (dataset.eval_samples, dataset.validation_split) == (5, None)
    dataset = layered("dataset: {eval_samples: 5}\n", FAR).config.dataset
    assert (dataset.eval_samples, dataset.validation_split) == (None, 0.1)


def test_what_one_layer_gives_together_stays_together(layered: Callable[..., Resolution]) -> None:
    both = "dataset: {path: near, name: near}\n"
    assert layered(FAR, both).config.dataset.name == "near"


def test_null_replaces_nothing(layered: Callable[..., Resolution]) -> None:
    assert layered(FAR, "dataset: {path: null, eval_samples: null}\n").config.dataset.name == "far"


def test_what_was_replaced_has_no_origin(layered: Callable[..., Resolution]) -> None:
    origins = layered(FAR, "dataset: {path: near}\n").origins
    assert origins["dataset.name"].kind == "default"
    assert origins["dataset.path"].kind == "profile"


def test_every_key_that_is_replaced_exists() -> None:
    replaced = {".".join(map(str, path)) for paths in replacing_keys().values() for path in paths}
    assert replaced <= set(all_keys())
