"""Scheduling, budget and continuation of trials, with fake benchmarks that need neither a GPU nor torch."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trial_runner
from trials import Trial, result_path, runs_of, unique

BENCHMARK = """
import glob, json, os, signal, sys, time
arguments = sys.argv[1:]
output = arguments[arguments.index("--output") + 1]
at = arguments.index("--until")
recipes, until = json.load(open(arguments[at - 1])), float(arguments[at + 1])
for recipe in recipes:
    if time.time() > until:
        break
    marker = recipe.get("fail_once")
    if "fail" in recipe or (marker and not os.path.exists(marker)):
        open(marker or os.devnull, "w").close()
        print("planted failure"), sys.exit(3)
    if "deaf" in recipe:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    begun = time.time()
    open(output + ".begun", "w").close()
    begun_beside = os.path.join(os.path.dirname(output), "*.begun")
    while len(glob.glob(begun_beside)) < recipe.get("until_begun", 0):
        time.sleep(0.01)
    time.sleep(recipe.get("sleep", 0))
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    line = {"loss": 1.0, "seconds": 2.0, "gpu": gpu, "begun": begun, "ended": time.time(), **recipe}
    with open(output, "a") as file:
        file.write(json.dumps(line) + "\\n")
"""


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    work, results = tmp_path / "work", tmp_path / "results"
    (work / "tokenizer").mkdir(parents=True)
    results.mkdir()
    for name in ("train.jsonl", "passages.npz"):
        (work / name).write_text(name)
    (tmp_path / "fake.py").write_text(BENCHMARK)
    kept = signal.getsignal(signal.SIGTERM)
    yield argparse.Namespace(work=work, results=results, seconds=100.0, begun_s=time.perf_counter())
    signal.signal(signal.SIGTERM, kept)


def trial(chosen, title, *recipes, most_s=2.0, run_s=1.0) -> Trial:
    command = (str(chosen.work.parent / "fake.py"), str(chosen.work), "--output")
    return Trial(unique(title, (), recipes), command, most_s, recipes, run_s)


def done(chosen, trial: Trial) -> list[dict]:
    return list(runs_of(chosen.results, trial.name))


def run(chosen, *trials: Trial) -> None:
    trial_runner.run_missing(lambda: trials, chosen)


def test_trials_share_the_gpus_and_never_one_gpu(chosen):
    trials = [trial(chosen, str(index), {"until_begun": count}) for index, count in enumerate((2, 2, 4, 4))]
    run(chosen, *trials)
    runs = [done(chosen, each)[0] for each in trials]
    by_gpu = {gpu: sorted((r["begun"], r["ended"]) for r in runs if r["gpu"] == gpu) for gpu in ("0", "1")}
    assert [len(spans) for spans in by_gpu.values()] == [2, 2]
    assert all(first[1] <= second[0] for first, second in by_gpu.values())
    assert by_gpu["0"][0][0] < by_gpu["1"][0][1]
    assert by_gpu["1"][0][0] < by_gpu["0"][0][1]


def test_several_trials_may_share_a_gpu(chosen, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    trials = [trial(chosen, str(index), {"until_begun": 2}) for index in range(2)]
    trial_runner.run_missing(lambda: trials, chosen, per_gpu=2)
    first, second = (done(chosen, each)[0] for each in trials)
    assert first["gpu"] == second["gpu"] == "3"
    assert first["begun"] < second["ended"]
    assert second["begun"] < first["ended"]


def test_each_gpu_has_a_folder_with_the_text(chosen):
    run(chosen, trial(chosen, "one", {"sleep": 0.2}), trial(chosen, "two", {"sleep": 0.2}))
    for gpu in "01":
        own = chosen.work.parent / f"work-gpu-{gpu}"
        assert (own / "train.jsonl").read_text() == "train.jsonl"
        assert (own / "tokenizer").is_dir()


def test_a_finished_trial_does_not_run_again(chosen):
    one, two = trial(chosen, "one", {}), trial(chosen, "two", {})
    run(chosen, one)
    before = done(chosen, one)
    run(chosen, one, two)
    assert done(chosen, one) == before
    assert len(done(chosen, two)) == 1


def carry_out(chosen, *trials: Trial) -> None:
    chosen.list = False
    trial_runner.carry_out(lambda: trials, lambda: "report", chosen)


def test_a_trial_that_failed_runs_once_more_and_keeps_its_runs(chosen, tmp_path, capsys):
    one, other = (
        trial(chosen, "one", {"id": 0}, {"fail_once": str(tmp_path / "marker")}),
        trial(chosen, "two", {}),
    )
    carry_out(chosen, one, other)
    assert [each.get("id") for each in done(chosen, one)] == [0, None]
    assert len(done(chosen, other)) == 1
    assert f"failed: {one.name}: once more" in capsys.readouterr().out


def test_a_trial_that_fails_twice_is_given_up(chosen):
    with pytest.raises(SystemExit, match=r"^failed: one-[0-9a-f]+$"):
        carry_out(chosen, trial(chosen, "one", {"fail": True}), trial(chosen, "two", {}))


def test_another_recipe_is_another_trial(chosen):
    run(chosen, trial(chosen, "one", {"lr": 1}))
    assert trial_runner.missing([trial(chosen, "one", {"lr": 1})], chosen.results) == []
    assert len(trial_runner.missing([trial(chosen, "one", {"lr": 2})], chosen.results)) == 1


def test_a_broken_line_is_not_taken_and_the_trial_continues_behind_the_whole_ones(chosen):
    three = trial(chosen, "three", {"id": 0}, {"id": 1}, {"id": 2})
    path = result_path(chosen.results, three.name)
    path.write_text('{"id": 0, "loss": 5.0, "seconds": 1}\n{"id": 1, "lo')
    assert [each["id"] for each in done(chosen, three)] == [0]
    run(chosen, three)
    found = done(chosen, three)
    assert [(each["id"], each["loss"]) for each in found] == [(0, 5.0), (1, 1.0), (2, 1.0)]


def test_a_failure_is_reported_with_its_output_and_stops_nothing(chosen, capsys):
    bad, good = trial(chosen, "bad", {"fail": 1}), trial(chosen, "good", {})
    with pytest.raises(SystemExit, match=f"failed: {bad.name}$"):
        run(chosen, bad, good)
    told = capsys.readouterr().out
    assert f"{bad.name} failed with exit code 3:\n    planted failure" in told
    assert f"{good.name}: loss 1 after 2.0 s" in told
    assert told.count(f"{bad.name} on GPU") == 1


def test_runs_before_a_failure_are_kept(chosen):
    mixed = trial(chosen, "mixed", {"id": 0}, {"fail": 1})
    with pytest.raises(SystemExit):
        run(chosen, mixed)
    assert [each["id"] for each in done(chosen, mixed)] == [0]


def test_a_diverged_run_counts_as_run(chosen, capsys):
    wild = trial(chosen, "wild", {"loss": None})
    run(chosen, wild)
    assert f"{wild.name}: diverged" in capsys.readouterr().out


def test_nothing_starts_that_would_end_too_late(chosen, capsys):
    chosen.seconds = 30.0
    long, short = trial(chosen, "long", {}, most_s=31), trial(chosen, "short", {})
    run(chosen, long, short)
    assert "long" not in capsys.readouterr().out
    assert (done(chosen, long), len(done(chosen, short))) == ([], 1)


def test_a_trial_of_several_runs_fills_the_time_and_leaves_the_rest(chosen, capsys):
    chosen.seconds = 2.5
    several = trial(chosen, "several", *({"sleep": 0.7, "id": index} for index in range(6)), most_s=1.5)
    run(chosen, several)
    num = len(done(chosen, several))
    assert 1 <= num < 6
    assert f"{several.name}: {6 - num} runs left" in capsys.readouterr().out


def test_what_can_be_named_later_runs_in_the_same_command(chosen):
    first, second = trial(chosen, "first", {}), trial(chosen, "second", {})

    def wanted():
        yield first
        if done(chosen, first):
            yield second

    trial_runner.run_missing(wanted, chosen)
    assert len(done(chosen, second)) == 1


def test_figures_are_written_after_every_trial_and_told_once(chosen, capsys):
    chosen.list, chosen.seconds = False, 100.0
    one, two = trial(chosen, "one", {}), trial(chosen, "two", {"fail": 1})
    seen = []

    def report() -> str:
        seen.append(len(done(chosen, one)))
        return "the figures"

    with pytest.raises(SystemExit, match="failed"):
        trial_runner.carry_out(lambda: [one, two], report, chosen)
    assert (seen[0], seen[-1]) == (0, 1)
    assert len(seen) >= 3
    assert capsys.readouterr().out.count("the figures") == 1


def test_a_price_starts_nothing(chosen, capsys):
    chosen.list = True
    trial_runner.carry_out(lambda: [trial(chosen, "one", {})], lambda: "", chosen)
    assert "at most" in capsys.readouterr().out
    assert list(chosen.results.iterdir()) == []


def test_a_second_command_is_refused(chosen):
    with (chosen.results / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(SystemExit, match="writes to results: end it first"):
            run(chosen, trial(chosen, "one", {}))


def test_a_price_is_that_of_what_is_left(chosen, capsys):
    three = trial(chosen, "three", {}, {}, {}, most_s=15, run_s=5)
    result_path(chosen.results, three.name).write_text('{"loss": 1}\n')
    trial_runner.price([three], chosen.results)
    assert capsys.readouterr().out == f"    20 s  {three.name}\n    20 s at most, 10 s on 2 GPUs\n"


COMMAND = """
import argparse, sys, time
from pathlib import Path
sys.path[:0] = [{benchmarks!r}]
import trial_runner
from trials import Trial
root = Path({root!r})
chosen = argparse.Namespace(
    work=root / "work", results=root / "results", seconds=100.0, begun_s=time.perf_counter()
)
recipes = ({{"id": 0, **{more!r}}}, {{"id": 1, "sleep": 60}})
command = (str(root / "fake.py"), str(root / "work"), "--output")
trial_runner.run_missing(lambda: [Trial("one", command, 2.0, recipes, 1.0)], chosen)
"""


def started_command(chosen, **more) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a command in a process of its own, and wait for its first result."""
    root = chosen.work.parent
    code = COMMAND.format(benchmarks=str(Path(trial_runner.__file__).parent), root=str(root), more=more)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = [path for path in chosen.results.glob("one.jsonl") if path.stat().st_size]
        if found:
            return process, found[0]
        time.sleep(0.05)
    process.kill()
    raise AssertionError("no result after a minute")


def is_locked(chosen) -> bool:
    with (chosen.results / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_stopped_command_ends_its_trials_and_keeps_what_is_done(chosen):
    process, results = started_command(chosen)
    process.terminate()
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert not is_locked(chosen)
    assert [json.loads(line)["id"] for line in results.read_text().splitlines()] == [0]


def test_the_trials_of_a_killed_command_end_with_it(chosen):
    process, _ = started_command(chosen)
    process.kill()
    process.wait(timeout=30)
    end = time.monotonic() + 20  # of a sleep of 60
    while is_locked(chosen) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_locked(chosen)


def test_a_trial_that_outlives_its_command_holds_the_lock(chosen):
    process, _ = started_command(chosen, deaf=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    try:
        process.kill()
        process.wait(timeout=30)
        assert is_locked(chosen)
    finally:
        for child in children:
            os.kill(int(child), signal.SIGKILL)
