"""A run that continues another one on other text, and what it may not continue."""

import json
import random

import pytest

from launcher.run.summary import summarize_run, summary_text
from neobert.errors import ProjectError
from neobert.training.checkpoint.restore import refuse_other_data
from tests.killed_run import killed_before
from tests.refusals import refusal_of
from tests.training.conftest import corpus_of, finished_run, read_lines, write_run

PLATEAU = 8
STABLE = {"scheduler": {"warmup_steps": 2, "decay_steps": 4, "name": "linear", "final_lr_ratio": 0.0}}
SOURCE = {**STABLE, "trainer": {"save_steps": 4, "eval_steps": 4, "save_total_limit": 0}}
TIMES = ("time/", "perf/", "train/tokens_per_sec")


def rows(run_dir):
    lines = read_lines(run_dir / "metrics.jsonl")
    return [{name: value for name, value in line.items() if not name.startswith(TIMES)} for line in lines]


@pytest.fixture(scope="module")
def source(tmp_path_factory, corpus):
    """A finished run with checkpoints at steps 4, 8 and 12, whose decay begins at step 8."""
    return finished_run(tmp_path_factory.mktemp("source") / "first", corpus, SOURCE)


@pytest.fixture(scope="module")
def other_text(tmp_path_factory):
    """Documents of other words, with half of the letters in common."""
    folder, draw = tmp_path_factory.mktemp("other"), random.Random(11)
    words = ["".join(draw.choices("aeioubdfmnz", k=draw.randint(2, 6))) for _ in range(40)]
    return corpus_of(folder, [" ".join(draw.choices(words, k=draw.randint(3, 40))) for _ in range(150)])


@pytest.fixture
def continued(tmp_path, other_text, source):
    """Write a run that continues the source on other text, changed as asked."""

    def write(name="second", **sections):
        checkpoint = str(source / "checkpoints" / str(PLATEAU))
        base = {
            **STABLE,
            "tokenizer": {"path": checkpoint, "vocab_size": None},
            "trainer": {"continue_from": checkpoint, "save_steps": 1, "eval_steps": 2, "logging_steps": 1},
        }
        merged = {key: {**base.get(key, {}), **sections.get(key, {})} for key in {*base, *sections}}
        return write_run(tmp_path / name, other_text, merged)

    return write


def test_weights_step_and_schedule_are_the_sources_and_the_data_begins(continued, source, run):
    run_dir = continued()
    assert run(run_dir) == 0
    mine, first = ({row["step"]: row for row in rows(each)} for each in (run_dir, source))
    assert list(mine) == [8, 9, 10, 11, 12]
    # The same weights on the same text under the same masks: to the last bit.
    assert mine[PLATEAU]["eval/source_loss"] == first[PLATEAU]["eval/loss"]
    assert mine[PLATEAU]["eval/loss"] != first[PLATEAU]["eval/loss"]
    assert mine[12]["train/learning_rate"] == first[12]["train/learning_rate"]
    assert mine[9]["train/tokens_total"] > first[PLATEAU].get("train/tokens_total", 0)
    assert mine[9]["train/epoch"] < 0.5
    ending = summary_text(summarize_run(run_dir, 0, (), None))
    assert f"source_loss: {mine[8]['eval/source_loss']:.4f} -> {mine[12]['eval/source_loss']:.4f}" in ending
    # It learned the new text, and the old one less.
    assert mine[12]["eval/loss"] < mine[PLATEAU]["eval/loss"]
    reported = json.loads((run_dir / "continued.json").read_text(encoding="utf-8"))
    assert (reported["step"], reported["checkpoint"]) == (PLATEAU, str(source / "checkpoints" / "8"))
    state = json.loads((run_dir / "checkpoints/12/trainer_state/state.json").read_text(encoding="utf-8"))
    assert state["source"] == reported
    assert state["cursor"]["epoch"] == 0


@pytest.mark.parametrize("number", [0, 3])
def test_killed_and_resumed_it_is_the_run_that_was_not(continued, run, number):
    whole, cut = continued("whole"), continued("cut")
    assert run(whole) == 0
    with killed_before(number):
        run(cut)
    assert run(cut) == 0
    assert rows(cut) == rows(whole)
    for name in ("model.safetensors", "trainer_state/optimizer.safetensors"):
        assert (cut / "checkpoints/12" / name).read_bytes() == (whole / "checkpoints/12" / name).read_bytes()


def test_a_resume_does_not_compare_the_evaluation_before_training(continued, run):
    """The new text is first seen at its worst: as a metric that should rise, this loss falls from there."""
    trainer = {
        "eval_steps": 1,
        "metric_for_best_model": "eval/loss",
        "greater_is_better": True,
        "early_stopping_patience": 2,
    }
    whole, cut = continued("whole", trainer=trainer), continued("cut", trainer=trainer)
    assert run(whole) == 0
    with killed_before(2):
        run(cut)
    assert run(cut) == 0
    assert [row["step"] for row in rows(whole)] == [8, 9, 10, 11]
    assert rows(cut) == rows(whole)


def test_without_the_source_text_there_is_one_evaluation(continued, run):
    run_dir = continued(trainer={"eval_source_text": False, "max_steps": 9})
    assert run(run_dir) == 0
    assert all("eval/source_loss" not in row for row in rows(run_dir))


def test_a_run_directory_stands_for_its_newest_checkpoint(continued, source, run):
    run_dir = continued(trainer={"continue_from": str(source), "max_steps": 14})
    assert run(run_dir) == 0
    assert rows(run_dir)[0]["step"] == 12


@pytest.mark.parametrize(
    ("sections", "message", "hint"),
    [
        ({"tokenizer": {"path": None, "vocab_size": 128}}, "tokenizer digest", "set tokenizer.path to"),
        ({"model": {"num_hidden_layers": 2}}, "model.num_hidden_layers", "restore the earlier values"),
        ({"optimizer": {"name": "muon"}}, "optimizer.name", "restore the earlier values"),
        ({"trainer": {"continue_from": "nowhere"}}, "no such folder", "set trainer.continue_from"),
    ],
)
def test_what_does_not_fit_is_refused(continued, run, sections, message, hint):
    assert hint in refusal_of(run, "CKP007", message, continued(**sections)).hint


def test_the_source_text_is_evaluated_in_rows_of_another_length(continued, run):
    run_dir = continued(dataset={"max_seq_length": 16}, trainer={"max_steps": 9})
    assert run(run_dir) == 0
    assert [row["step"] for row in rows(run_dir) if "eval/source_loss" in row] == [8, 9]


def test_a_source_text_that_is_gone_is_named(continued, source, run, tmp_path, monkeypatch):
    run_dir = continued()
    state = source / "checkpoints" / str(PLATEAU) / "trainer_state" / "resolved.json"
    gone = json.loads(state.read_text(encoding="utf-8"))
    gone["dataset"] |= {"path": str(tmp_path / "gone.jsonl")}
    monkeypatch.setattr("neobert.runfiles.continuation.read_config", lambda _: gone)
    error = refusal_of(run, "DAT001", "source text cannot be read", run_dir)
    assert str(tmp_path / "gone.jsonl") in error.message
    assert "eval_source_text: false" in error.hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("data fingerprint", "restore the text and the tokenizer as they were"),
        ("tokenizer digest", "restore the text and the tokenizer as they were"),
        ("model code", "restore the earlier values"),
    ],
)
def test_the_refusal_of_a_resume_names_what_has_changed(tmp_path, name, hint):
    identity = {"data fingerprint": "a", "tokenizer digest": "a", "model code": "a"}
    refuse_other_data(tmp_path, {"identity": identity}, identity, is_other_text=False)
    with pytest.raises(ProjectError, match=f"{name}: b in the checkpoint, a in this run") as refusal:
        refuse_other_data(tmp_path, {"identity": identity | {name: "b"}}, identity, is_other_text=False)
    assert refusal.value.hint.startswith(hint)
