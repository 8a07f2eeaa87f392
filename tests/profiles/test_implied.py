"""Values that a task and the length of a run imply, unless they are stated."""

import pytest

from neobert.config import ConfigError, to_dict
from profiles.begun import RecordedRun
from profiles.registry import resolve_run

BEST = ("trainer.metric_for_best_model=eval/loss",)


def cadence(*overrides, profile="cpu", files=(), begun=None):
    trainer = resolve_run(profile, files, overrides, begun).config.trainer
    return trainer.eval_steps, trainer.save_steps


@pytest.mark.parametrize(
    ("steps", "expected"), [(51, (13, 13)), (200, (50, 50)), (201, (100, 100)), (1, (1, 1))]
)
def test_a_short_run_with_a_best_checkpoint_is_evaluated_four_times(steps, expected):
    assert cadence(f"trainer.max_steps={steps}", *BEST) == expected


@pytest.mark.parametrize(
    "overrides",
    [
        ("trainer.max_steps=51",),
        BEST,
        ("trainer.max_steps=51", "trainer.metric_for_best_model=null"),
        ("trainer.max_steps=51", *BEST, "trainer.save_steps=100"),
        ("trainer.max_steps=51", *BEST, "trainer.eval_steps=100"),
    ],
)
def test_a_stated_cadence_or_length_stays(overrides):
    assert cadence(*overrides) == (100, 100)


def test_the_length_may_be_a_variable(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "variables: {steps: 40}\ntrainer: {max_steps: $variables.steps, metric_for_best_model: eval/loss}\n"
    )
    assert cadence(files=[file]) == (10, 10)


def test_a_continued_run_keeps_the_cadence_that_it_began_with():
    first = resolve_run("cpu", (), ("trainer.max_steps=40", *BEST))
    origins = {key: origin._asdict() for key, origin in first.origins.items()}
    begun = RecordedRun("resolved.json", to_dict(first.config), origins)
    assert cadence("trainer.max_steps=80", *BEST) == (20, 20)
    assert cadence("trainer.max_steps=80", *BEST, begun=begun) == (10, 10)


@pytest.mark.parametrize(
    ("task", "profile", "handling"),
    [
        ("classification", "h200-prod", "truncate"),
        ("contrastive", "cpu", "truncate"),
        ("token_classification", "cpu", "split"),
        ("pretrain", "cpu", "split"),
    ],
)
def test_a_text_that_stays_whole_is_truncated(task, profile, handling):
    config = resolve_run(profile, (), (f"task={task}",)).config
    assert config.dataset.long_documents == handling


def test_another_handling_may_be_stated():
    config = resolve_run("cpu", (), ("task=classification", "dataset.long_documents=drop")).config
    assert config.dataset.long_documents == "drop"


@pytest.mark.parametrize("wrong", ["task=[1]", "trainer.max_steps=-5", "trainer.max_steps=soon"])
def test_a_wrong_value_has_one_error(wrong):
    with pytest.raises(ConfigError) as error:
        resolve_run("cpu", (), (wrong, *BEST))
    assert len(error.value.issues) == 1
