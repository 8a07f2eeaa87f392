"""The remaining part of a run that starts from a checkpoint, and the step in the name of that checkpoint."""

from dataclasses import replace
from pathlib import Path

import pytest

from neobert.config.schema import RunConfig
from neobert.plan import assumptions_for, build_plan
from neobert.plan.derived import Start
from neobert.plan.remaining import find_start, remaining_from

CPU = assumptions_for(None, None, 0.3)


def config_with(price: float | None = 2.0, **trainer) -> RunConfig:
    config = RunConfig()
    guard = replace(config.guard, price_per_gpu_hour=price)
    return replace(config, guard=guard, trainer=replace(config.trainer, **({"max_steps": 40} | trainer)))


def checkpoints(folder: Path, *steps: int) -> Path:
    for step in steps:
        (folder / "checkpoints" / str(step)).mkdir(parents=True)
    return folder


@pytest.mark.parametrize(("step", "steps"), [(0, 40), (30, 10), (40, 0), (41, 0)])
def test_steps_tokens_time_and_cost_are_those_that_are_left(step, steps):
    config = config_with()
    plan = build_plan(config, CPU)
    left = remaining_from(config, plan, step)
    assert (left.first_step, left.steps) == (step, steps)
    for value, whole in ((left.tokens, plan.total_tokens), (left.eta_s, plan.eta_s), (left.cost, plan.cost)):
        assert value.value == pytest.approx(whole.value * steps / 40, rel=1e-5)
        assert value.reason.startswith(whole.reason)
    assert left.tokens.reason.endswith("25.0% of the run is left") == (step == 30)


def test_without_a_price_the_cost_of_the_rest_is_unknown():
    config = config_with(price=None)
    assert remaining_from(config, build_plan(config, CPU), 30).cost.value is None


def test_the_short_steps_of_a_batch_warmup_are_those_that_are_done():
    config = config_with(gradient_accumulation_steps=4, batch_size_warmup_steps=20)
    plan = build_plan(config, CPU)
    # 10 steps of 1, 10 of 2 and 20 of 4 microbatches.
    assert remaining_from(config, plan, 20).tokens.value == pytest.approx(
        plan.total_tokens.value * 80 / 110, abs=1
    )


@pytest.mark.parametrize(
    ("resume", "source", "start"),
    [
        ("auto", None, Start(30)),
        ("never", None, Start()),
        ("latest", None, Start(20)),
        ("own/checkpoints/20", None, Start(20)),
        ("own/checkpoints/latest", None, Start(20)),
        ("elsewhere", None, Start()),
        ("auto", "other", Start(30, 9)),
        ("never", "other", Start(9, 9)),
        ("never", "other/checkpoints/8", Start(8, 8)),
        ("never", "nowhere", Start()),
    ],
)
def test_the_names_of_the_folders_tell_the_step(resume, source, start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = checkpoints(tmp_path / "own", 20, 30)
    (own / "checkpoints" / "latest").symlink_to("20")
    checkpoints(tmp_path / "other", 8, 9)
    config = config_with(output_dir="own", resume_from_checkpoint=resume, continue_from=source)
    assert find_start(config) == start


def test_a_folder_that_cannot_be_read_is_no_error_of_the_plan(tmp_path, monkeypatch):
    def refuse(path: Path):
        raise PermissionError(13, "Permission denied", str(path))

    checkpoints(tmp_path, 20)
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert find_start(config_with(output_dir=str(tmp_path), resume_from_checkpoint="auto")) == Start()
    assert find_start(config_with(output_dir="a\0b", resume_from_checkpoint="auto")) == Start()
