"""Run files of pairs: microbatches that the table fills, and positions, rate and pooling of the weights."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from neobert.tasks.contrastive.section import CONTRASTIVE
from profiles.registry import resolve_run
from tests.launcher.model_folders import SIZES, write_model
from tests.pairs import pairs
from validators.rules.task_pairs import FEWEST_PAIRS

POOLING = {"word_embedding_dimension": SIZES["hidden_size"], "pooling_mode": "mean"}


def write_pairs(count: int, negatives: int = 0) -> None:
    rows = [
        row | {"negative": [f"{number} stones" for number in range(negatives)]} for row in pairs(count, 1)
    ]
    Path("pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def made(command: Callable[..., Any], file: str, *options: str) -> Any:
    """Return the run of the file that `init` writes for the pairs."""
    command(
        "init", file, "--task", "contrastive", "--text", "pairs.jsonl", "--device", "cpu", *options
    ).passed()
    return resolve_run(None, [file], ["dataset.cache_dir=cache"]).config


def declare(folder: str) -> None:
    """Make a folder one of sentence-transformers."""
    modules = [{"type": "models.Transformer", "path": ""}, {"type": "models.Pooling", "path": "1_Pooling"}]
    Path(folder, "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    Path(folder, "1_Pooling").mkdir()
    Path(folder, "1_Pooling", "config.json").write_text(json.dumps(POOLING), encoding="utf-8")


@pytest.mark.child
@pytest.mark.parametrize(("count", "negatives"), [(24, 0), (60, 12)])
def test_the_pairs_of_a_small_table_fill_a_microbatch(count, negatives, command):
    from neobert.data.store.prepare import prepare  # it imports transformers

    write_pairs(count, negatives)
    report = prepare(made(command, "run.yaml")).report
    assert report["microbatch"]["tokens"] <= report["train"]["tokens"]
    assert command("preflight", "run.yaml", "--level", "host").code == 0


def test_a_step_of_many_negatives_is_several_microbatches(command):
    write_pairs(600, 12)
    trainer = made(command, "run.yaml").trainer
    assert trainer.gradient_accumulation_steps > 1
    assert trainer.per_device_train_batch_size * 32 <= 8192 < FEWEST_PAIRS * 14 * 32 * 4


@pytest.mark.parametrize(("count", "share"), [(1200, 0.2), (2400, 0.05)])
def test_a_fifth_of_a_small_table_is_held_out(count, share, command):
    write_pairs(count, negatives=2)  # the examples count, and each has four texts
    assert made(command, "run.yaml").dataset.validation_split == share


def test_columns_are_found_in_any_case(command):
    rows = (
        {key.title(): text for key, text in (row | {"negative": "stones"}).items()} for row in pairs(60, 1)
    )
    Path("pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = made(command, "run.yaml")
    section = CONTRASTIVE.read_section(config)
    columns = (config.dataset.text_column, section.positive_column, section.negative_columns)
    assert columns == ("Query", "Positive", ("Negative",))
    assert section.max_negatives == 1


def test_rows_are_no_longer_than_those_of_the_weights(command):
    write_model(Path("model"), "neobert", num_attention_heads=4, max_position_embeddings=32)
    rows = [row | {"positive": "some words " * 40} for row in pairs(60, 1)]
    Path("pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert made(command, "run.yaml", "--from", "model").dataset.max_seq_length == 32


def test_embeddings_that_are_trained_get_a_lower_rate(command):
    write_pairs(60)
    for name in ("plain", "trained"):
        write_model(Path(name))
    declare("trained")
    plain, trained = (made(command, f"{name}.yaml", "--from", name) for name in ("plain", "trained"))
    assert trained.optimizer.lr < plain.optimizer.lr / 3
    assert "low, because these embeddings are already trained" in Path("trained.yaml").read_text(
        encoding="utf-8"
    )


@pytest.mark.child
@pytest.mark.parametrize(
    ("declared", "line"),
    [
        ({}, "pooling: avg # the weights declare none"),
        ({"pooling": "cls"}, "pooling: cls # from config.json of the weights"),
    ],
)
def test_the_pooling_that_weights_do_not_declare_is_in_the_file(declared, line, command):
    write_pairs(60)
    write_model(Path("model"), **declared)
    made(command, "run.yaml", "--from", "model")
    content = Path("run.yaml").read_text(encoding="utf-8")
    assert line in " ".join(content.split())
    undeclared = "TSK014 undeclared-pooling: contrastive.pooling is avg by default"
    assert undeclared not in command("preflight", "run.yaml", "--level", "host").out
    tree = yaml.safe_load(content)
    del tree["contrastive"]["pooling"]
    Path("less.yaml").write_text(yaml.safe_dump({key: value for key, value in tree.items() if value}))
    found = command("preflight", "less.yaml", "--level", "host").out
    assert f"{undeclared}, and model declares {declared.get('pooling', 'none')}" in found


def test_a_table_of_pairs_without_a_task_names_the_task(command):
    write_pairs(60)
    write_model(Path("model"))
    before = sorted(os.listdir())
    answer = command("init", "--from", "model", "--text", "pairs.jsonl")
    answer.refused(2, "'query', 'positive'; or, to train on its pairs, add --task contrastive")
    assert sorted(os.listdir()) == before


def test_another_name_of_an_option_is_not_taken_for_the_form_of_the_output(command):
    assert "did you mean --to?" in command("export", "model", "--format", "onnx").err
    assert "have their adapter merged" in command("export", "model", "--merge-adapter").err
