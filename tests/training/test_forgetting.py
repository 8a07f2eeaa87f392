"""The loss on text that the weights were trained on before: evaluated where it is given, and warned of."""

import json
from types import SimpleNamespace

import pytest

from neobert.errors import ProjectError
from neobert.metric_names import SOURCE_LOSS
from neobert.training.guards.forgetting import FORGETTING, LIMIT, forgetting_watch
from neobert.training.loop.hooks import StepReport
from neobert.training.state.train_state import TrainState
from tests.training.conftest import finished_run, read_lines, write_run

FIRST = {"trainer": {"save_steps": 12, "eval_steps": 12}}


@pytest.fixture(scope="module")
def weights(tmp_path_factory, corpus):
    """The last checkpoint of a run on the corpus."""
    run_dir = finished_run(tmp_path_factory.mktemp("weights") / "first", corpus, FIRST)
    return str(run_dir / "checkpoints" / "12")


@pytest.fixture
def fine_tuned(tmp_path, corpus, weights):
    """Write a run from the weights on ten other documents, with the corpus as the old text."""

    def write(name="second", **trainer):
        texts = (" ".join(["mu", "ka"[number % 2 :]] * 9) for number in range(200))
        (tmp_path / "new.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts), "utf-8")
        new = {"path": str(tmp_path / "new.jsonl"), "cache_dir": corpus["cache_dir"]}
        sections = {
            "model": {"pretrained_checkpoint": weights},
            "tokenizer": {"path": weights, "vocab_size": None},
            "optimizer": {"lr": 0.3},
            "trainer": {"eval_source_path": corpus["path"], "eval_steps": 4, "save_steps": 4, **trainer},
        }
        return write_run(tmp_path / name, new, sections)

    return write


def test_the_old_text_is_evaluated_before_the_first_step_and_then_on(fine_tuned, run):
    run_dir = fine_tuned()
    assert run(run_dir) == 0
    losses = {
        row["step"]: row[SOURCE_LOSS] for row in read_lines(run_dir / "metrics.jsonl") if SOURCE_LOSS in row
    }
    assert list(losses) == [0, 4, 8, 12]
    assert losses[12] > LIMIT * losses[0]
    beats = read_lines(run_dir / "heartbeat_rank0.jsonl")
    assert beats[-1]["warnings"] == {FORGETTING: 1}


def test_the_same_documents_have_the_same_loss(fine_tuned, run, tmp_path):
    """An old text with the documents that the run holds out for its evaluation, and nothing else."""
    lines = (tmp_path / "new.jsonl").read_text("utf-8").splitlines() if fine_tuned() else []
    (tmp_path / "old.jsonl").write_text("\n".join(lines[:12]), "utf-8")
    run_dir = fine_tuned(eval_source_path=str(tmp_path / "old.jsonl"), max_steps=1)
    assert run(run_dir) == 0
    first = read_lines(run_dir / "metrics.jsonl")[0]
    assert first[SOURCE_LOSS] == first["eval/loss"]


def test_a_run_that_resumes_compares_with_its_first_loss(fine_tuned, run):
    run_dir = fine_tuned(max_steps=4)
    assert run(run_dir) == 0
    first = read_lines(run_dir / "metrics.jsonl")[0][SOURCE_LOSS]
    assert forgetting_watch(run_dir).first == first
    assert forgetting_watch(run_dir / "none").first is None


@pytest.mark.parametrize(("factor", "warnings"), [(0.5, 0), (1.068, 0), (1.069, 1), (2.0, 1)])
def test_the_limit_is_what_half_of_the_text_would_teach(tmp_path, factor, warnings):
    watch, state = forgetting_watch(tmp_path), TrainState(progress=SimpleNamespace(step=0))
    trainer = SimpleNamespace(state=state)
    for loss in (4.0, None, 4.0 * factor, 4.0 * factor):
        watch(trainer, StepReport(0, {SOURCE_LOSS: loss}))
    assert state.warnings.get(FORGETTING, 0) == warnings


def test_an_old_text_that_cannot_be_read_is_named(fine_tuned, run, tmp_path):
    with pytest.raises(ProjectError, match=r"the source text cannot be read: .*gone\.jsonl") as caught:
        run(fine_tuned(eval_source_path=str(tmp_path / "gone.jsonl")))
    assert caught.value.hint == "set trainer.eval_source_path to a file or folder with text"
