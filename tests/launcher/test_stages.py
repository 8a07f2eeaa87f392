"""`train --stages`: a run is judged at the steps that were named, and stopped where one of them fails."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.run.stages import StageData, Stages, find_problem, parse_stages, require_stages
from neobert.errors import ProjectError

TRAIN = ("train", "-p", "cpu-demo", "--set", "trainer.output_dir=run")
GPU = {"gpu_mem_reserved_mib": 4096, "recompiles": 0, "warnings": {}}


def lines_of(
    *losses: float | None, pace: float = 1000.0, first_step: int = 1, every: int = 1
) -> list[dict[str, Any]]:
    return [
        {"step": first_step + every * number, "train/loss": loss, "train/tokens_per_sec": pace}
        for number, loss in enumerate(losses)
    ]


def trend(*losses: float, every: int = 40) -> list[dict[str, Any]]:
    return lines_of(*losses, every=every)


SOUND = StageData(trend(9.0, 8.0, 7.0, 6.0), lines_of(7.0, 6.5, 6.0), GPU, 1000.0, 0, must_fall=True)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"lines": [{"step": 7, "train/tokens_per_sec": 1.0}]}, "the loss of step 7 is not a finite number"),
        ({"lines": lines_of(9.0, float("nan"), 8.0)}, "the loss of step 2 is not a finite number"),
        ({"lines": trend(9.0, 8.0, 9.5, 9.0)}, "the loss does not fall: 9.0000 at first, 9.0000 now"),
        (
            {"lines": trend(9.0, 9.0, 9.0, 8.9)},
            "the loss does not fall: 9.0000 at first, 8.9000 now (noise 0.1",
        ),
        ({"lines": trend(5.0, 5.0, 5.0, 5.51), "must_fall": False}, "the loss rises: 5.0000 at first"),
        ({"beat": GPU | {"warnings": {"allocator_retries": 2}}}, "the trainer warned: allocator_retries 2"),
        ({"beat": GPU | {"recompiles": 3}}, "still being compiled: 3 recompiles, 0 in the previous stages"),
        (
            {"beat": GPU | {"recompiles": 5}, "recompiles": 4},
            "still being compiled: 5 recompiles, 4 in the previous stages",
        ),
        ({"pace": 1112.0}, "throughput changed from 1,112 to 1,000 tokens/s since the previous stage"),
        ({"pace": 909.0}, "throughput changed from 909 to 1,000 tokens/s since the previous stage"),
    ],
)
def test_a_stage_that_fails(change, problem):
    assert problem in find_problem(replace(SOUND, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"lines": trend(9.0, 9.0, 9.5)},  # too few lines for a trend
        {"lines": trend(9.0, 8.0, 9.5, 9.0, every=33)},  # too few steps
        {"lines": trend(5.0, 5.0, 5.0, 5.49), "must_fall": False},
        {"beat": GPU | {"warnings": {"slow_tokens": 1}}},  # the band judges the pace
        {"beat": GPU | {"recompiles": 4}, "recompiles": 4},
        {"pace": 1111.0},
        {"pace": None},
        {"pace": 2000.0, "beat": {}},  # a CPU shares its cores
        {"pace": 2000.0, "settled": lines_of(7.0, 6.0)},
    ],
)
def test_its_neighbour_that_passes(change):
    assert find_problem(replace(SOUND, **change)) == ""


def test_stages_are_judged_once_each_and_only_the_ones_ahead(tmp_path):
    reported: list[str] = []
    stages = Stages(tmp_path, (10, 20, 30), 10, reported.append)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines_of(3.0, 3.1, first_step=9)))
    assert not stages.check_reached_stages()
    with metrics.open("a") as file:
        for line in [*lines_of(3.0, 3.0, first_step=19), {"step": 25, "eval/loss": 1.0}]:
            file.write(json.dumps(line) + "\n")
    assert not stages.check_reached_stages()
    assert not stages.check_reached_stages()
    assert reported == ["stage 20 passed: loss 3.0000 -> 3.0000 at step 20, 1k tokens/s, memory -"]
    with metrics.open("a") as file:
        file.write(json.dumps(lines_of(None, first_step=31)[0]) + "\n")
    assert stages.check_reached_stages()
    assert stages.failure.startswith("stage 30 failed: the loss of step 31 is not a finite number; ")
    assert not stages.check_reached_stages()


def test_a_run_from_trained_weights_need_not_fall(tmp_path):
    reported: list[str] = []
    fresh = Stages(tmp_path, (100,), -1, reported.append)
    trained = Stages(tmp_path, (100,), -1, reported.append, has_weights=True)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in trend(*[3.0] * 4)))
    assert fresh.check_reached_stages()
    assert not trained.check_reached_stages()
    assert [line.partition(":")[0] for line in reported] == ["stage 100 passed"]


@pytest.mark.parametrize("text", ["", "0", "1,x", "10,5", "5,5", "1.5", "-1", "١"])
def test_what_is_no_list_of_stages(text):
    with pytest.raises(ProjectError) as refusal:
        parse_stages(text)
    assert (refusal.value.place, refusal.value.exit_code) == ("--stages", 2)


def test_stages_are_read():
    assert parse_stages(None) == ()
    assert parse_stages("1, 300,1000") == (1, 300, 1000)
    require_stages((), 1)
    require_stages((2,), 3)
    with pytest.raises(ProjectError, match=r"stage 3 is not before the last step \(3\)"):
        require_stages((1, 3), 3)


@pytest.mark.child
@pytest.mark.usefixtures("warm")
def test_a_run_that_does_not_learn_is_stopped_at_its_stage(run_child):
    answer = run_child(*TRAIN, "--stages", "150,600", "--output-format", "json", fake="worse")
    assert answer.code == 93, answer.err
    assert Path("run", "received").exists()
    assert answer.json["status"] == "failed"
    assert answer.json["message"].startswith("stage 150 failed: the loss does not fall: 5.0000 at first")
    outcome = json.loads(Path("run", "outcome.json").read_text(encoding="utf-8"))
    assert (outcome["exit_code"], outcome["status"]) == (93, "failed")


def test_a_stage_beyond_the_end_is_a_usage_error(command):
    command(*TRAIN, "--stages", "700", "--dry-run").refused(2, "stage 700 is not before the last step (700)")
