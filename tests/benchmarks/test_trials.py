"""Continuation of trials, with fake benchmarks that need neither a GPU nor torch."""

from __future__ import annotations

import argparse

import pytest
from trials import Trial, missing, result_path, run_missing, runs_of, unique

BENCHMARK = """
import json, sys
recipes, _, output = sys.argv[1:]
for recipe in json.load(open(recipes)):
    if "fail" in recipe:
        sys.exit(3)
    with open(output, "a") as file:
        file.write(json.dumps({"loss": 1.0, "seconds": 2.0, **recipe}) + "\\n")
"""


@pytest.fixture
def chosen(tmp_path):
    (tmp_path / "fake.py").write_text(BENCHMARK)
    return argparse.Namespace(results=tmp_path)


def trial(chosen, title, *recipes) -> Trial:
    command = (str(chosen.results / "fake.py"),)
    return Trial(unique(title, (), recipes), command, recipes)


def run(chosen, *trials: Trial) -> list[str]:
    return run_missing(lambda: trials, lambda: None, chosen.results)


def ids(chosen, trial: Trial) -> list[int]:
    return [each["id"] for each in runs_of(chosen.results, trial.name)]


def test_a_finished_run_is_kept_and_the_rest_is_added(chosen):
    three = trial(chosen, "three", {"id": 0}, {"id": 1}, {"id": 2})
    result_path(chosen.results, three.name).write_text('{"id": 0, "loss": 5.0}\n')
    assert run(chosen, three) == run(chosen, three) == []
    assert ids(chosen, three) == [0, 1, 2]
    assert runs_of(chosen.results, three.name)[0]["loss"] == 5.0


def test_another_recipe_is_another_trial(chosen):
    run(chosen, trial(chosen, "one", {"lr": 1}))
    assert missing([trial(chosen, "one", {"lr": 1})], chosen.results) == []
    assert len(missing([trial(chosen, "one", {"lr": 2})], chosen.results)) == 1


def test_a_failure_keeps_the_runs_before_it_and_stops_no_other_trial(chosen):
    bad, good = trial(chosen, "bad", {"id": 0}, {"fail": 1}), trial(chosen, "good", {"id": 0})
    assert run(chosen, bad, good) == [bad.name]
    assert (ids(chosen, bad), ids(chosen, good)) == ([0], [0])


def test_what_can_be_named_later_runs_in_the_same_command(chosen):
    first, second = trial(chosen, "first", {"id": 0}), trial(chosen, "second", {"id": 0})
    reports = []

    def wanted():
        yield first
        if ids(chosen, first):
            yield second

    assert run_missing(wanted, lambda: reports.append(1), chosen.results) == []
    assert ids(chosen, second) == [0]
    assert len(reports) == 2, "one after each trial"
