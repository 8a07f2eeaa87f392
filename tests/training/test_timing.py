"""Where the time of a step goes: parts that add up, a clock that tests turn, a collector that waits."""

import gc
import math
import statistics
import weakref
from contextlib import suppress
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neobert.training.loop.hooks import GarbageCollector, collect_between_steps
from neobert.training.telemetry.metrics import TIMED_PAUSES
from neobert.training.telemetry.stopwatch import (
    BREAKDOWN,
    COLLATE,
    PARTS,
    SECTIONS,
    Breakdown,
    Stopwatch,
    part_ms,
)

CPU = torch.device("cpu")
milliseconds = st.floats(min_value=0, max_value=1e4)


class Clock:
    """A clock that stands until it is turned."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_ms(self, amount: float) -> None:
        self.now_s += amount / 1000


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("neobert.training.telemetry.stopwatch.time.perf_counter", clock)
    return clock


def test_a_time_that_was_measured_elsewhere_is_no_part_of_the_sum(clock):
    stopwatch = Stopwatch(CPU, BREAKDOWN)
    for took_ms in (30.0, 50.0):
        with stopwatch.step():
            stopwatch.add_time(COLLATE, took_ms)
            clock.pass_ms(10)
    fields = Breakdown().fields(stopwatch.read().steps)
    assert fields["time/collate_ms"] == pytest.approx(40)
    assert fields["time/collate_p95_ms"] == pytest.approx(49)
    assert sum(fields[f"time/{name}_ms"] for name in PARTS) == pytest.approx(10)


def do_step(stopwatch, clock, lasting, unnamed_ms=0.0):
    with stopwatch.step():
        for name, amount in lasting.items():
            with stopwatch.section(name):
                clock.pass_ms(amount)
        clock.pass_ms(unnamed_ms)


def test_the_stopwatch_tells_each_step_and_starts_anew(clock):
    stopwatch = Stopwatch(CPU, BREAKDOWN)
    do_step(stopwatch, clock, {"data_wait": 2, "forward": 10})
    do_step(stopwatch, clock, {"data_wait": 4, "forward": 20}, unnamed_ms=1)
    times = stopwatch.read()
    assert times.elapsed_s == pytest.approx(0.037)
    assert times.steps == (
        pytest.approx({"data_wait": 2, "forward": 10, "step": 12}),
        pytest.approx({"data_wait": 4, "forward": 20, "step": 25}),
    )
    assert times.mean_ms("forward") == pytest.approx(15)
    assert stopwatch.read() == type(times)(0.0, (), ({},))


class Device:
    """A device that works through what it is given, and stands while there is nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._until_s = clock, clock.now_s

    def give(self, work_ms: float) -> None:
        self._until_s = max(self._until_s, self._clock.now_s) + work_ms / 1000

    def reached_s(self) -> float:
        """Return when it will be done with what it was given by now."""
        return max(self._until_s, self._clock.now_s)

    def wait(self) -> None:
        self._clock.now_s = self.reached_s()


@pytest.mark.parametrize(
    ("host_ms", "device_ms", "share"), [(30, 27, 1.0), (30, 1, 1.0), (25, 28, 0.0), (12, 28, 0.0)]
)
def test_a_device_that_waits_for_its_host_is_told_from_one_that_lags(
    clock, monkeypatch, host_ms, device_ms, share
):
    """The host launches a hundredth of a step at a time, and waits for the device at every line only."""
    device = Device(clock)
    monkeypatch.setattr(Stopwatch, "_record_time", lambda _: device.reached_s())
    stopwatch = Stopwatch(torch.device("cuda"))
    for _ in range(3):
        for _ in range(5):
            with stopwatch.step():
                for _ in range(100):
                    clock.pass_ms(host_ms / 100)
                    device.give(device_ms / 100)
                stopwatch.mark_backward_launched()
        device.wait()
        with stopwatch.pause("logging"):
            times = stopwatch.read()
            clock.pass_ms(500)
        assert times.host_bound_share == share
        assert len(times.lags_ms) == 5


def test_a_cpu_has_no_host_to_wait_for(clock):
    stopwatch = Stopwatch(CPU)
    with stopwatch.step():
        stopwatch.mark_backward_launched()
        clock.pass_ms(1)
    assert stopwatch.read().host_bound_share is None


def test_a_pause_is_no_training(clock):
    stopwatch = Stopwatch(CPU)
    do_step(stopwatch, clock, {"data_wait": 7})
    for _ in range(2):
        with stopwatch.pause("checkpoint"):
            clock.pass_ms(500)
    times = stopwatch.read()
    assert times.elapsed_s == pytest.approx(0.007)
    assert times.pauses_ms == pytest.approx({"checkpoint": 1000})


def test_pauses_are_those_of_the_step_before_them(clock):
    stopwatch = Stopwatch(CPU)
    for took_ms in (5, 7, 0):
        do_step(stopwatch, clock, {"data_wait": 1})
        with stopwatch.pause("checkpoint"):
            clock.pass_ms(took_ms)
    with stopwatch.pause("logging"):
        clock.pass_ms(2)
        times = stopwatch.read()
        clock.pass_ms(3)
    assert [each["checkpoint"] for each in times.pauses] == pytest.approx([5, 7, 0], abs=1e-6)
    do_step(stopwatch, clock, {"data_wait": 1})
    assert stopwatch.read().pauses == (pytest.approx({"logging": 3}),)


def test_what_a_reading_waited_for_was_the_work_of_the_steps(clock):
    """A GPU is behind the host: the reading waits for it inside a pause, once for every line."""
    stopwatch = Stopwatch(CPU)
    stopwatch.read()
    for _ in range(3):
        do_step(stopwatch, clock, {"data_wait": 1})
        with stopwatch.pause("logging"):
            clock.pass_ms(40)  # until the device is done
            times = stopwatch.read()
            clock.pass_ms(3)
        assert times.elapsed_s == pytest.approx(0.041)
    assert times.pauses_ms == pytest.approx({"logging": 3})


@given(st.lists(st.dictionaries(st.sampled_from(SECTIONS), milliseconds), min_size=1, max_size=30))
def test_parts_sum_to_the_step(sections):
    steps = [{**each, "step": sum(each.values()) + 1} for each in sections]
    fields = Breakdown().fields(steps)
    total = sum(fields[f"time/{name}_ms"] for name in PARTS)
    assert total == pytest.approx(statistics.fmean(step["step"] for step in steps))
    assert part_ms(steps[0], "other") == pytest.approx(1, abs=1e-6)
    for name in (*PARTS, "step"):
        assert fields[f"time/{name}_p50_ms"] <= fields[f"time/{name}_p95_ms"]


def test_the_moving_average_goes_on_over_lines():
    breakdown = Breakdown()
    moved = [breakdown.fields([{"step": 10.0}])["time/step_moving_ms"]]
    moved += [breakdown.fields([{"step": 20.0}] * 50)["time/step_moving_ms"] for _ in range(3)]
    assert moved[0] == 10.0
    assert all(a < b < 20.0 for a, b in pairwise(moved))
    assert moved[1] == pytest.approx(20 - 10 * 0.98**50)


def test_a_real_run_tells_where_its_time_goes(make_run, run, metrics):
    run_dir = make_run(trainer={"timing_breakdown": True, "max_steps": 30, "eval_steps": 0})
    run(run_dir)
    lines = [line for line in metrics(run_dir) if "train/loss" in line]
    gaps = [abs(sum(line[f"time/{name}_ms"] for name in PARTS) / line["time/step_ms"] - 1) for line in lines]
    # Another process may take the core between two marks, but not in every line.
    assert min(gaps) < 0.02
    shares = [line["time/other_ms"] / line["time/step_ms"] for line in lines]
    assert 0 <= statistics.median(shares) < 0.05
    assert all(line[f"time/{name}_ms"] > 0 for line in lines for name in (*SECTIONS, COLLATE))
    assert all(line[f"time/{name}_ms"] >= 0 for line in lines for name in TIMED_PAUSES)
    assert lines[-1]["time/logging_ms"] > 0
    assert all(
        line[f"time/{name}_p50_ms"] <= line[f"time/{name}_p95_ms"] for line in lines for name in TIMED_PAUSES
    )


def test_the_data_wait_is_always_told(finished, metrics):
    for line in (line for line in metrics(finished) if "train/loss" in line):
        assert line["perf/data_wait_share"] == pytest.approx(line["time/data_wait_ms"] / line["time/step_ms"])
        assert 0 < line["perf/data_wait_share"] < 1
        assert line["perf/host_bound_share"] is None
        assert "time/forward_ms" not in line


def test_the_breakdown_changes_no_number(make_run, run, exact, uninterrupted):
    broken_down = make_run(trainer={"timing_breakdown": True})
    run(broken_down)
    assert exact(broken_down) == uninterrupted
    assert all(math.isfinite(line["train/loss"]) for line in uninterrupted if "train/loss" in line)


class Knot:
    """Refers to itself: only the cyclic collector finds it."""

    def __init__(self) -> None:
        self.itself = self


def tie() -> weakref.ref[Knot]:
    return weakref.ref(Knot())


def make_garbage() -> None:
    """Make far more objects than would set the collector off."""
    for _ in range(20):
        [[] for _ in range(5_000)]
    held = [Knot() for _ in range(20_000)]
    del held


@pytest.mark.usefixtures("heap")
def test_the_collector_runs_between_steps_only():
    with collect_between_steps():
        knot = tie()
        make_garbage()
        assert knot() is not None
        GarbageCollector()(None, None)
        assert knot() is None
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_what_the_first_steps_built_is_set_aside_once():
    with collect_between_steps():
        collector, compiled = GarbageCollector(), Knot()
        collector(None, None)
        assert all(compiled is not each for each in gc.get_objects())
        later = Knot()
        collector(None, None)
        assert any(later is each for each in gc.get_objects())


def test_garbage_would_be_collected_during_steps():
    knot = tie()
    make_garbage()
    assert knot() is None


@pytest.mark.usefixtures("heap")
def test_objects_from_before_are_frozen():
    before = [Knot() for _ in range(10)]
    with collect_between_steps():
        assert gc.get_freeze_count() > len(before)
        assert all(each not in gc.get_objects() for each in before)


def test_collection_is_enabled_again_after_a_failure():
    with suppress(RuntimeError), collect_between_steps():
        raise RuntimeError
    assert gc.isenabled()


def test_training_leaves_no_tensor_in_a_cycle(make_run, run, monkeypatch):
    """Garbage that waits for the collector holds no memory of the device."""
    found = []

    def look(trainer, _report):
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        found.append(sum(isinstance(each, torch.Tensor) for each in gc.garbage))
        gc.garbage.clear()

    monkeypatch.setattr("neobert.training.loop.session.GarbageCollector", lambda: look)
    run(make_run(trainer={"max_steps": 12, "logging_steps": 3}))
    assert found == [0, 0, 0, 0]
