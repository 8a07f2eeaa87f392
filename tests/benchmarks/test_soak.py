"""What a soak holds against a run: each fault that it looks for is planted, beside a run that is sound."""

from __future__ import annotations

import json

import pytest
import soak
import soak_judge

LOGGING_STEPS, STEPS = 5, 120
KILLED_AT, SAVED_AT = 62, 60


def metrics(noise: float = 0.0):
    return [
        {
            "step": step,
            "train/loss": 7.0 - step / 100 + noise * (step > KILLED_AT),
            "train/tokens_total": 1000 * step,
            "train/learning_rate": 1e-3 / step,
            "train/epoch": step / 50,
        }
        for step in range(LOGGING_STEPS, STEPS + 1, LOGGING_STEPS)
    ]


def given(pid: int, first: int, last: int):
    return [{"pid": pid, "step": step, "digest": f"of {step}"} for step in range(first, last + 1)]


def write(folder, lines, steps):
    folder.mkdir(exist_ok=True)
    for name, rows in (("metrics.jsonl", lines), (soak_judge.GIVEN, steps)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture
def verdict(tmp_path, monkeypatch):
    """Judge a run that was killed once and may differ from a sound one; checkpoints are taken for sound."""
    monkeypatch.setattr(soak_judge, "left_overs", lambda _: [])

    def judged(lines=None, steps=None, kind="kill the trainer"):
        sound = [*given(1, 1, KILLED_AT), *given(2, SAVED_AT + 1, STEPS)]
        disturbed = write(tmp_path / "disturbed", lines or metrics(), steps or sound)
        undisturbed = write(tmp_path / "undisturbed", metrics(), given(3, 1, STEPS))
        strikes = [{"kind": kind, "pid": 1}]
        return soak_judge.judge(disturbed, undisturbed, strikes, LOGGING_STEPS)

    return judged


def test_a_sound_run_has_no_faults(verdict):
    found = verdict()
    assert found["faults"] == []
    assert (found["largest_smoothed"], found["first_unequal_step"]) == (0.0, None)
    assert (found["sessions_that_trained"], found["steps_done_again"]) == (2, KILLED_AT - SAVED_AT)
    assert found["strikes"][0]["lost_steps"] == KILLED_AT - SAVED_AT


def test_another_curve_is_measured(verdict):
    found = verdict(metrics(noise=0.01))
    assert 0.001 < found["largest_smoothed"] < found["largest_single"] < 0.002
    assert found["first_unequal_step"] == 65


def test_lines_that_are_missing_doubled_or_of_another_count(verdict):
    lines = metrics()
    assert "missing [50]" in verdict([line for line in lines if line["step"] != 50])["faults"][0]
    assert "twice" in verdict([*lines[:9], lines[8], *lines[9:]])["faults"][0]
    wrong = [line | {"train/tokens_total": 1000 * line["step"] + (line["step"] > 70)} for line in lines]
    assert verdict(wrong)["faults"] == ["train/tokens_total differs first at step 75: 75001 and 75000"]


def test_steps_that_were_given_other_samples_or_skipped(verdict):
    other = given(1, 1, KILLED_AT)
    other[40] = other[40] | {"digest": "of something else"}
    rest = given(2, SAVED_AT + 1, STEPS)
    assert verdict(steps=other + rest)["faults"] == ["other samples or masks in steps [41]"]
    assert verdict(steps=given(1, 1, 58) + rest)["faults"] == ["steps that no session did: [59, 60]"]


def test_a_request_to_stop_may_cost_no_step(verdict):
    assert verdict(kind="stop the launcher")["faults"] == ["to stop the launcher lost 2 steps"]


def test_every_kind_of_strike_is_drawn_and_drawn_again():
    drawn = [soak.draw(0, number, 90.0) for number in range(60)]
    assert {kind for kind, *_ in drawn} == set(soak.KINDS)
    assert {is_early for _, is_early, _ in drawn[1:]} == {True, False}
    assert drawn[0][1] is False
    assert all(0 <= delay_s <= (22.5 if is_early else 90.0) for _, is_early, delay_s in drawn)
    assert (
        drawn
        == [soak.draw(0, number, 90.0) for number in range(60)]
        != [soak.draw(1, n, 90.0) for n in range(60)]
    )


def test_what_a_soak_has_done_is_remembered(tmp_path):
    first = soak.Soak(tmp_path, 0, 1.0, 1.0, strikes=[{"kind": "stop the launcher"}], spent_s=7.5)
    first.remember()
    second = soak.Soak(tmp_path, 0, 1.0, 1.0)
    second.recall()
    assert (second.strikes, second.spent_s) == (first.strikes, 7.5)
