"""Guesses at masked words: what is written, across a resume, and that training does not depend on them."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from neobert.runfiles.samples import (
    MAX_EVALUATIONS,
    Evaluation,
    Guess,
    MaskedText,
    Samples,
    parse_samples,
)
from neobert.tasks.pretraining import task
from neobert.tasks.pretraining.masked_words import MaskedWords
from tests.training.conftest import exact_lines


def samples(run_dir) -> Samples:
    return parse_samples(json.loads((run_dir / "samples.json").read_text(encoding="utf-8")))


def test_a_run_writes_its_guesses_and_trains_as_without_them(
    make_run, run, finished, uninterrupted, monkeypatch
):
    found = samples(finished)
    assert [each.step for each in found.evaluations] == [0, 4, 8, 12]
    assert 1 <= len(found.texts) <= 4
    for text in found.texts:
        assert text.word.isalpha()
        assert text.before
        assert text.after
    for evaluation in found.evaluations:
        for guesses in evaluation.guesses:
            assert len(guesses) == 3
            assert not any(re.match(r"\[|<\|", guess.text) for guess in guesses), "a word, and no filler"
            assert sorted(guesses, key=lambda guess: -guess.probability) == guesses
    assert found.evaluations[0].guesses != found.evaluations[-1].guesses
    monkeypatch.setattr(task, "mask_words", lambda *_: None)
    without = make_run("without")
    assert run(without) == 0
    assert not (without / "samples.json").exists()
    assert exact_lines(without) == uninterrupted


def test_a_model_that_takes_packed_rows_only_guesses_too():
    backbone = SimpleNamespace(plain=lambda ids: torch.eye(8)[ids], head=lambda rows: rows)
    tokenizer = SimpleNamespace(decode=lambda ids, **_: f"word{ids[0]}")
    words = MaskedWords(tokenizer, [], torch.tensor([[1, 5, 2], [6, 2, 1]]), [1, 0], torch.arange(3, 8))
    first, second = words.guesses(backbone, torch.device("cpu"))
    assert (first[0].text, second[0].text) == ("word5", "word6")


def test_a_resumed_run_has_the_guesses_of_one_that_was_not_stopped(make_run, run, finished):
    resumed = make_run("resumed", trainer={"max_steps": 8})
    assert run(resumed) == 0
    before = samples(resumed)
    later = Samples(before.texts, [*before.evaluations, Evaluation(9, before.evaluations[0].guesses)])
    (resumed / "samples.json").write_text(json.dumps(later.as_json()), encoding="utf-8")
    make_run("resumed")
    assert run(resumed) == 0
    assert samples(resumed).texts == samples(finished).texts
    assert [each.step for each in samples(resumed).evaluations] == [0, 4, 8, 12]


def test_a_full_disk_does_not_end_the_run(make_run, run, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("neobert.training.telemetry.guess_log.write_atomically", full)
    assert run(make_run()) == 0
    assert "samples.json: the disk is full" in caplog.text


def test_the_file_is_bounded_and_keeps_the_first_evaluation():
    found = Samples([MaskedText("a", "word", "b")])
    for step in range(1000):
        found = found.with_evaluation(Evaluation(step, [[Guess("x" * 40, 0.25)]]))
        assert len(found.evaluations) <= MAX_EVALUATIONS
    steps = [each.step for each in found.evaluations]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0, 999)
    assert max(np.diff(steps)) <= 1000 / MAX_EVALUATIONS * 4
    assert parse_samples(found.as_json()) == found


SOUND = {
    "texts": [{"before": "a", "word": "b", "after": "c"}],
    "evaluations": [{"step": 1, "guesses": [[["x", 0.5]]]}],
}


@pytest.mark.parametrize(
    "damage",
    [
        {"texts": []}, {"texts": 7}, {"texts": [{}]}, {"texts": [{"before": 1, "word": "b", "after": "c"}]},
        {"texts": SOUND["texts"] * 9}, {"texts": [{"before": "a" * 999, "word": "b", "after": "c"}]},
        {"evaluations": None}, {"evaluations": [{"step": -1, "guesses": [[]]}]},
        {"evaluations": [{"step": 1, "guesses": []}]}, {"evaluations": [{"step": 1, "guesses": [["x"]]}]},
        {"evaluations": [{"step": 1, "guesses": [[["x", float("nan")]]]}]},
        {"evaluations": SOUND["evaluations"] * 65},
    ],
)  # fmt: skip
def test_a_damaged_file_has_no_samples(damage):
    assert parse_samples(SOUND).texts
    assert parse_samples(SOUND | damage) == Samples()
