"""`--parallel`: points that train at the same time, their devices and cores, and their stops."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.commands import parallel_points
from launcher.commands.parallel_points import divide_into_slots, make_slots, train_points
from launcher.commands.selection import Selection
from launcher.commands.sweep import ListedPoints, make_candidate
from launcher.commands.train import TrainRequest
from launcher.process.trainer_process import Topology
from launcher.run.sweep_points import expand, parse_axes
from neobert.errors import ProjectError
from profiles.registry import resolve_run
from tests.launcher.conftest import WITH_FAKE_TRAINER, child_environment

SWEEP = ("train", "-p", "cpu-demo", "--set", "trainer.output_dir=sweep", "--sweep", "seed=1,2,3")
BRIEF = ("trainer.max_steps=4", "trainer.save_steps=0", "trainer.eval_steps=0", "scheduler.warmup_steps=1")
BOTH_FAKES = f"""
import sys
from launcher.commands import parallel_points
parallel_points.LAUNCHER = (sys.executable, "-c", {WITH_FAKE_TRAINER!r})
{WITH_FAKE_TRAINER}"""
"""A launcher whose trainer pretends, and whose child launchers have such trainers too."""
REPORT = """
import json, os, sys
name = sys.argv[-1].rpartition("/")[2]
held = {"devices": os.environ.get("CUDA_VISIBLE_DEVICES"), "cores": sorted(os.sched_getaffinity(0))}
open(name + ".json", "w").write(json.dumps(held))
"""
"""A launcher that writes what it has for itself."""
WAIT_S = 60.0


@given(st.integers(1, 9), st.integers(0, 4), st.integers(0, 40), st.integers(1, 40))
def test_no_two_points_share_a_device_or_a_core(parallel, each, devices, cores):
    gpus = [f"GPU-{index}" for index in range(devices)]
    if parallel * each > devices:
        with pytest.raises(ProjectError, match="visible"):
            divide_into_slots(gpus, each, range(cores), parallel)
        return
    slots = divide_into_slots(gpus, each, range(cores), parallel)
    used = [device for slot in slots for device in slot.devices]
    assert len(slots) == parallel
    assert len(used) == len(set(used)) == parallel * each
    held = [core for slot in slots for core in slot.cores]
    assert all(slot.cores for slot in slots)
    assert len(held) == len(set(held)) or cores < parallel


@pytest.mark.parametrize(
    ("profile", "parallel", "words"),
    [("a100-prod", 3, "pass --parallel 2"), ("a100-prod", 2, ""), ("cpu-demo", 9, "")],
)
def test_points_on_gpus_need_one_each(profile, parallel, words, monkeypatch):
    gpus = [type("Gpu", (), {"uuid": f"GPU-{index}"}) for index in range(2)]
    monkeypatch.setattr("launcher.commands.parallel_points.probe_gpus", lambda: gpus)
    run = resolve_run(profile, (), ("distributed.nproc_per_node=1",))
    if words:
        with pytest.raises(ProjectError) as raised:
            make_slots(run, parallel)
        assert raised.value.hint == words
    else:
        devices = [slot.devices for slot in make_slots(run, parallel)]
        assert devices == ([("GPU-0",), ("GPU-1",)] if profile == "a100-prod" else [()] * 9)


@pytest.mark.child
def test_a_launcher_sees_its_devices_and_cores_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel_points, "LAUNCHER", (sys.executable, "-c", REPORT))
    selection = Selection("cpu-demo", (), ())
    points = expand(parse_axes(["seed=1,2,3,4"]))
    candidates = [make_candidate(selection, point, tmp_path) for point in points]
    cores = sorted(os.sched_getaffinity(0))
    slots = divide_into_slots(["GPU-a", "GPU-b"], 1, cores, 2)
    request = TrainRequest(selection, Topology(), dry_run=False, strict=False)
    assert train_points(ListedPoints(candidates, tmp_path), request, "text", slots) == 0
    held = [json.loads(Path(f"{point.folder}.json").read_text()) for point in points]
    assert {each["devices"] for each in held[:2]} == {"GPU-a", "GPU-b"}
    expected = {slot.devices[0]: list(slot.cores) for slot in slots}
    assert [each["cores"] for each in held] == [expected[each["devices"]] for each in held]


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_points_train_as_they_do_one_after_another(run_child, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # else a point has fewer threads next to another one
    words = [word for value in BRIEF for word in ("--set", value)]
    train = ("train", "-p", "cpu-demo", *words, "--output-format", "json")
    one = run_child(*train, "--set", "trainer.output_dir=one", "--sweep", "optimizer.lr=2e-3")
    rates = ("--sweep", "optimizer.lr=1e-3,2e-3", "--parallel", "2")
    both = run_child(*train, "--set", "trainer.output_dir=both", *rates)
    assert (one.code, both.code) == (0, 0), both.err
    [alone] = one.json["points"]
    results = [each["result"] for each in both.json["points"]]
    assert [each["status"] for each in results] == ["finished"] * 2
    assert results[1]["last_evaluation"] == alone["result"]["last_evaluation"]
    assert json.loads(Path("both/sweep.json").read_text(encoding="utf-8")) == both.json


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_a_point_that_cannot_succeed_does_not_end_the_others(launch, monkeypatch):
    monkeypatch.setattr(parallel_points, "LAUNCHER", (sys.executable, "-c", WITH_FAKE_TRAINER))
    answer = launch(*SWEEP, "--parallel", "2", fake="refuse")
    assert (answer.code, answer.out.count(" failed ")) == (93, 3)
    assert answer.err.count(": exit code 93") == 3


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_trials_of_a_search_train_at_the_same_time(launch, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr(parallel_points, "LAUNCHER", (sys.executable, "-c", WITH_FAKE_TRAINER))
    space = ("--search", "optimizer.lr=log(1e-4,3e-3)", "--trials", "3")
    answer = launch(*SWEEP[:-2], *space, "--parallel", "2", "--output-format", "json", fake="finish").passed()
    points = answer.json["points"]
    assert [each["result"]["status"] for each in points] == ["finished"] * 3
    assert len({each["overrides"][0] for each in points}) == 3


@pytest.fixture
def sweeping() -> Iterator[subprocess.Popen[str]]:
    """A sweep of which two points train until they are stopped."""
    command = [sys.executable, "-c", BOTH_FAKES, *SWEEP, "--parallel", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(command, env=child_environment(FAKE_TRAINER="stop"), **pipes)
    deadline_s = time.monotonic() + 2 * WAIT_S
    while not all(Path(f"sweep/seed={seed}/ready_0").exists() for seed in (1, 2)):
        assert child.poll() is None
        assert time.monotonic() < deadline_s, "the points do not start"
        time.sleep(0.05)
    yield child
    child.kill()
    child.communicate()


def outcomes() -> list[str]:
    return [json.loads(path.read_text())["status"] for path in sorted(Path("sweep").glob("*/outcome.json"))]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("number", "code", "status"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 75, "preempted")],
)
def test_a_stop_ends_all_points_after_a_save(number, code, status, sweeping):
    started = psutil.Process(sweeping.pid).children(recursive=True)
    sweeping.send_signal(number)
    out, err = sweeping.communicate(timeout=2 * WAIT_S)
    assert sweeping.returncode == code, err
    assert "continue with: neobert-launch train --resume auto" in err
    assert outcomes() == [status] * 2
    assert "not run" in out, "the third point was not started"
    assert psutil.wait_procs(started, timeout=WAIT_S)[1] == []


@pytest.mark.e2e
def test_a_preempted_point_stops_the_others(sweeping):
    launchers = psutil.Process(sweeping.pid).children()
    assert len(launchers) == 2
    launchers[0].send_signal(signal.SIGTERM)
    out, err = sweeping.communicate(timeout=2 * WAIT_S)
    assert sweeping.returncode == 75, err
    assert outcomes() == ["preempted"] * 2
    assert "not run" in out, "the third point was not started"


@pytest.mark.e2e
def test_points_of_a_killed_sweep_save_and_stop(sweeping):
    started = psutil.Process(sweeping.pid).children(recursive=True)
    sweeping.kill()
    sweeping.communicate()
    assert psutil.wait_procs(started, timeout=2 * WAIT_S)[1] == []
    assert outcomes() == ["preempted"] * 2
