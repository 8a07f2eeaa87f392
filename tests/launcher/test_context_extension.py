"""`init --from MODEL --context N`: rotary base, batch and documents of longer rows, or a refusal."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from neobert.config import from_dict, to_dict
from neobert.config.corpora import PLUGGED
from neobert.config.schedules import masking_rates
from neobert.errors import ProjectError
from neobert.families.neobert.trained_settings import refuse_other_model
from neobert.families.rotary_base import extended_base
from profiles.registry import resolve_run
from tests.launcher.model_folders import write_header, write_model, write_tokenizer

SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
LONG, SHORT = "word " * 3000, "word " * 40


def write_neobert(folder: Path, **settings: Any) -> Path:
    folder.mkdir(parents=True)
    values = {"model_type": "neobert", **SIZES, "max_position_embeddings": 1024, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(values | settings), encoding="utf-8")
    write_tokenizer(folder)
    write_header(folder / "model.safetensors", {})
    return folder


def write_run(folder: Path, sections: dict[str, Any]) -> None:
    """Write the config of the run that saved a checkpoint."""
    run = to_dict(from_dict(sections))
    run["trainer"] |= {"ema_decay": None}  # a key of an older release
    (folder / "trainer_state").mkdir()
    (folder / "trainer_state/resolved.json").write_text(json.dumps(run), "utf-8")


def write_text(*documents: str) -> Path:
    Path("long.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in documents), "utf-8")
    return Path("long.jsonl")


@pytest.mark.parametrize(
    ("trained", "length", "base"),
    [
        (10_000, 1024, 10_000),  # no longer than in training
        (10_000, 512, 10_000),
        (10_000, 4096, 42_000),  # 10,000 x 4^(64/62), rounded up; the least base is 32,000
        (10_000, 8192, 100_000),  # the least base; 8 times the rows alone give 86,000
        (160_000, 8192, 1_400_000),
    ],
)
def test_base_of_longer_rows(trained, length, base):
    assert extended_base(trained, 1024, length, 64) == base


def test_a_run_file_of_longer_rows_keeps_the_tokens_of_a_step(command):
    write_neobert(Path("model"))
    write_text(*[LONG] * 120)
    command(
        "init", "--from", "model", "--text", "long.jsonl", "--context", "4096", "--device", "gpu"
    ).passed()
    config, profile = resolve_run(None, ["run.yaml"]).config, resolve_run("gpu", ()).config
    assert (config.dataset.max_seq_length, config.dataset.min_length) == (4096, 1024)
    assert config.model.rope_theta == 42_000
    rows = config.trainer.per_device_train_batch_size * config.trainer.gradient_accumulation_steps
    assert rows * 4096 == profile.trainer.per_device_train_batch_size * profile.dataset.max_seq_length
    command("lint", "run.yaml", "--strict").passed()


def test_short_documents_stay_in_a_text_that_has_mostly_these(command):
    write_neobert(Path("model"))
    write_text(LONG, *[SHORT] * 2000)
    assert command("init", "--from", "model", "--text", "long.jsonl", "--context", "4096").code == 0
    assert resolve_run(None, ["run.yaml"]).config.dataset.min_length == 1


@pytest.mark.parametrize(("before", "rate"), [(6e-2, 6e-3), (6e-3, 6e-4), (1e-5, 4e-4)])
def test_weights_of_a_run_bring_its_batch_masks_evaluation_and_rate(command, before, rate):
    """A tenth of the rate of that run, and no less than the rule for a width of 128."""
    folder = write_neobert(Path("model"))
    sections = {
        "dataset": {"max_seq_length": 1024},
        "datacollator": {"mlm_probability": 0.3},
        "optimizer": {"lr": before},
        "trainer": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
        "distributed": {"nproc_per_node": 2},
    }
    write_run(folder, sections)
    write_text(*[LONG] * 120)
    assert command("init", "--from", "model", "--text", "long.jsonl", "--context", "4096").code == 0
    config = resolve_run(None, ["run.yaml"]).config
    trainer = config.trainer
    assert (trainer.per_device_train_batch_size, trainer.gradient_accumulation_steps) == (1, 4)
    assert (trainer.eval_source_path, masking_rates(config.datacollator)) == ("model", (0.3, 0.3))
    assert config.optimizer.lr == rate
    command("lint", "run.yaml", "--strict", "--select", "OPT006").passed()


def test_text_that_a_plugin_returned_is_not_evaluated_on_longer_rows(command):
    """The code of another run is not imported: its checkpoint has no text, and preflight refused the run."""
    folder = write_neobert(Path("model"))
    write_run(folder, {"dataset": {"name": PLUGGED}, "plugins": {"dataset": "rows.py:rows"}})
    write_text(*[LONG] * 120)
    command("init", "--from", "model", "--text", "long.jsonl", "--context", "4096").passed()
    assert resolve_run(None, ["run.yaml"]).config.trainer.eval_source_path is None


@pytest.mark.parametrize(
    ("kind", "settings", "problem", "hint"),
    [
        (
            "bert",
            {},
            "exceeds the 128 learned positions of the bert in model",
            "leave out --context, and set dataset.max_seq_length to 128 in the run file, or pass a model",
        ),
        (
            "gpt2",
            {},
            "exceeds the 128 learned positions of the gpt2 in model",
            "dataset.max_seq_length to 128",
        ),
        ("modernbert", {}, "exceeds the 128 rotary positions of the modernbert", "raise rope_theta"),
        ("neobert", {"rope": False}, "exceeds the 1,024 learned positions", "dataset.max_seq_length to 1024"),
    ],
)
def test_positions_that_cannot_be_extended_are_refused(command, kind, settings, problem, hint):
    if kind == "neobert":
        write_neobert(Path("model"), **settings)
    else:
        write_model(Path("model"), kind)
    write_text(LONG)
    answer = command("init", "--from", "model", "--text", "long.jsonl", "--context", "2048")
    assert (answer.code, Path("run.yaml").exists()) == (2, False)
    assert problem in answer.err
    assert hint in answer.err


def test_rows_that_are_no_longer_than_before_are_refused(command):
    write_neobert(Path("model"))
    write_text(LONG)
    answer = command("init", "--from", "model", "--text", "long.jsonl", "--context", "512")
    assert (answer.code, Path("run.yaml").exists()) == (2, False)
    assert "--context 512 does not exceed the 1,024 positions of the weights" in answer.err
    assert "leave out --context, and set dataset.max_seq_length to 512 in the run file" in answer.err


def test_a_context_without_weights_is_an_error(command):
    answer = command("init", "--text", str(write_text(LONG)), "--context", "2048")
    assert (answer.code, "--context is given without --from" in answer.err) == (2, True)
    answer = command("train", "-p", "cpu", "--from", "model", "--context", "2048")
    assert "set --dataset.max_seq_length 2048" in answer.err


@pytest.mark.parametrize(
    ("base", "length", "hint"),
    [
        (160_000, 1024, None),
        (300_000, 4096, None),
        (10_000, 1024, "set model.rope_theta to 160000"),
        (300_000, 1024, "set model.rope_theta to 160000"),
        (10_000, 4096, "set model.rope_theta to 160000"),
    ],
)
def test_another_base_needs_longer_rows(tmp_path, base, length, hint):
    folder = write_neobert(tmp_path / "model", rope_theta=160_000)
    sections = {"model": SIZES | {"rope_theta": base}, "dataset": {"max_seq_length": length}}
    with nullcontext() if hint is None else pytest.raises(ProjectError) as caught:
        refuse_other_model(from_dict(sections), folder)
    assert (None if hint is None else caught.value.hint) == hint


def test_from_keeps_the_base_of_the_weights(command):
    write_neobert(Path("model"), rope_theta=160_000)
    write_text(*[SHORT] * 400)
    assert command("init", "--from", "model", "--text", "long.jsonl").code == 0
    assert resolve_run(None, ["run.yaml"]).config.model.rope_theta == 160_000
