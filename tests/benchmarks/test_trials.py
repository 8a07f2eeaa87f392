"""Trials as child processes: only missing ones run, and one that fails does not stop the others."""

from __future__ import annotations

import argparse
import time

import pytest
from trials import FailedTrialError, Trial, lines_of, run_missing

WRITES = "import sys; open(sys.argv[1], 'a').write('{\"loss\": 2.5, \"seconds\": 1}\\n')"
APPENDS = WRITES + "; open(sys.argv[1] + '.ran', 'a').write('x')"


@pytest.fixture
def chosen(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    begun = time.perf_counter()
    return argparse.Namespace(work=tmp_path / "work", results=results, seconds=60.0, begun=begun)


def trial(name: str, code: str = WRITES, most_s: float = 1.0, figure: str = "loss") -> Trial:
    return Trial(name, ("-c", code), most_s, figure=figure)


def test_each_runs_once(chosen):
    wanted = [trial("a", APPENDS), trial("b", APPENDS)]
    run_missing(lambda: wanted, chosen, per_gpu=2)
    run_missing(lambda: wanted, chosen)
    assert lines_of(chosen.results, "a") == [{"loss": 2.5, "seconds": 1}]
    assert {path.read_text() for path in chosen.results.glob("*.ran")} == {"x"}
    assert len(list(chosen.results.glob("*.ran"))) == 2


def test_what_was_cut_short_runs_again(chosen):
    (chosen.results / "a.part").write_text('{"loss": 9, "seconds": 9}\n')
    run_missing(lambda: [trial("a")], chosen)
    assert lines_of(chosen.results, "a") == [{"loss": 2.5, "seconds": 1}]


def test_a_failure_is_named_in_the_end(chosen):
    wanted = [trial("bad", "raise SystemExit(1)"), trial("lacking", figure="score"), trial("good")]
    with pytest.raises(FailedTrialError, match=r"failed: bad, lacking$"):
        run_missing(lambda: wanted, chosen)
    assert lines_of(chosen.results, "good") is not None
    assert lines_of(chosen.results, "bad") is lines_of(chosen.results, "lacking") is None


def test_nothing_starts_that_would_end_later(chosen):
    run_missing(lambda: [trial("long", most_s=61.0), trial("short", most_s=5.0)], chosen)
    assert lines_of(chosen.results, "long") is None
    assert lines_of(chosen.results, "short") is not None


def test_a_trial_that_another_makes_known_runs_too(chosen):
    def wanted():
        yield trial("first")
        if lines_of(chosen.results, "first"):
            yield trial("second")

    run_missing(wanted, chosen)
    assert lines_of(chosen.results, "second") is not None
