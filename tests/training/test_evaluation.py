"""What an evaluation adds up to: a mean where there are targets, null where there are none."""

import math
from contextlib import closing, nullcontext
from types import SimpleNamespace

import pytest
import torch

from neobert.config.schema import RunConfig, TrainerConfig
from neobert.objectives.tokens import Score
from neobert.runfiles.phases import PhaseTracker
from neobert.tasks.pretraining.spec import PRETRAINING
from neobert.tasks.token_metrics import TokenMetrics, perplexity
from neobert.training.loop.steps import evaluate
from neobert.training.state.train_state import TrainState
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.jsonl_writer import JsonlWriter
from neobert.training.telemetry.metrics import SMOOTHED_LINES, SmoothedPace, _clip_fields, format_metrics


class Scores(torch.nn.Module):
    def evaluate(self, loss_sum: float, num_correct: int) -> Score:
        return Score(torch.tensor(loss_sum), torch.tensor(num_correct))


def trainer_over(batches) -> Trainer:
    """As much of a trainer as an evaluation needs. batches: (loss_sum, num_correct, num_targets)."""
    scored = [SimpleNamespace(inputs=batch[:2], num_targets=batch[2]) for batch in batches]
    alone = SimpleNamespace(
        device=torch.device("cpu"),
        autocast=nullcontext,
        evaluation_context=lambda _: nullcontext(),
        sum_over_ranks=list,
        all_reduce_sum=lambda tensor: tensor,
    )
    return SimpleNamespace(
        config=RunConfig(),
        progress=SimpleNamespace(step=4),
        source_evaluation=None,
        state=TrainState(progress=None),
        world=alone,
        module=Scores(),
        signals=SimpleNamespace(votes=[], stop_if_requested=lambda _: None, raise_on_request=nullcontext),
        phases=PhaseTracker(),
        task=SimpleNamespace(
            evaluation=lambda: scored,
            objective=Scores(),
            metrics=lambda: TokenMetrics(alone.device),
            inputs=lambda batch, _: dict(zip(("loss_sum", "num_correct"), batch.inputs, strict=True)),
        ),
    )


def test_a_metric_that_the_task_never_returns_cannot_select_a_checkpoint():
    """A name that the task declares and its evaluation spells in another way."""
    trainer = trainer_over([(6.0, 1, 2)])
    trainer.config = RunConfig(trainer=TrainerConfig(metric_for_best_model="eval/accurate"))
    trainer.state.progress = trainer.progress
    evaluate(trainer)
    message = trainer.state.warning_messages["undefined_metric"]
    assert message.startswith("step 4: eval/accurate has no value on the evaluation data")


def test_the_mean_is_over_all_targets():
    trainer = trainer_over([(6.0, 1, 2), (3.0, 1, 4)])
    row = evaluate(trainer) | {"step": 4}
    assert row["eval/loss"] == pytest.approx(1.5)
    assert row["eval/accuracy"] == pytest.approx(1 / 3)
    assert "eval loss 1.5000" in format_metrics(row, 8, PRETRAINING.metrics)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(None, None), (0.0, 1.0), (2.0, math.exp(2)), (709.0, math.exp(709)), (710.0, None)],
)
def test_a_perplexity_beyond_every_number_is_null(loss, expected):
    assert perplexity(loss) == expected


@pytest.mark.parametrize("batches", [[], [(0.0, 0, 0)]])
def test_without_a_target_there_is_no_loss(batches):
    trainer = trainer_over(batches)
    row = evaluate(trainer) | {"step": 4}
    assert row["eval/loss"] is None
    assert row["eval/accuracy"] is None
    assert "eval has no target to predict" in format_metrics(row, 8, PRETRAINING.metrics)


@pytest.mark.parametrize("loss_sum", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_said_and_not_told(loss_sum, tmp_path, caplog):
    """Training goes on: its own guard judges it, and a line of JSON has no such number."""
    trainer = trainer_over([(loss_sum, 1, 4)])
    row = evaluate(trainer) | {"step": 4}
    assert (row["eval/loss"], row["eval/accuracy"]) == (None, 0.25)
    assert "evaluation metric loss is not finite" in caplog.text
    assert "eval no finite loss, accuracy 25.00%" in format_metrics(row, 8, PRETRAINING.metrics)
    with closing(JsonlWriter(tmp_path / "metrics.jsonl")) as writer:
        writer.append(row)


@pytest.mark.parametrize(
    ("logits", "reported"), [([3.0, 7.0], 7.0), ([3.0, math.inf], None), ([math.nan], None)]
)
def test_an_attention_logit_that_is_no_number_is_not_told(logits, reported):
    """The guard stops for what follows from it, by its name and not by that of a line of JSON."""
    clip = SimpleNamespace(highest=torch.tensor([logits]))
    assert _clip_fields(clip) == {"train/max_attention_logit": reported}


def test_how_much_of_an_evaluation_is_done_is_known_from_the_one_before():
    trainer = trainer_over([(1.0, 1, 4), (1.0, 1, 4), (1.0, 1, 4)])
    seen = []
    evaluate_batch = trainer.task.objective.evaluate

    def watched(*arguments, **keywords):
        seen.append(trainer.phases.parts)
        return evaluate_batch(*arguments, **keywords)

    trainer.task.objective.evaluate = watched
    evaluate(trainer)
    evaluate(trainer)
    assert seen == [(1, None), (2, None), (3, None), (1, 3), (2, 3), (3, 3)]
    assert trainer.phases.parts == (None, None)


def test_the_pace_is_a_mean_of_the_last_lines_without_the_first():
    pace = SmoothedPace()
    assert pace.add(100.0, 10) == 10.0, "compilation is all that is known"
    assert pace.add(20.0, 10) == 2.0
    assert pace.add(40.0, 10) == 3.0
    for _ in range(SMOOTHED_LINES):
        smoothed = pace.add(5.0, 5)
    assert smoothed == 1.0
