"""Who works when, what the report says, and what a baseline must share. The arms here only pretend."""

import copy
import json
import subprocess
import sys

import pytest

from neobert.bench import conductor
from neobert.bench.request import Request
from neobert.errors import EXIT_CHECK_UNKNOWN, EXIT_USAGE, ProjectError

ABOUT = {
    "device": "a card",
    "versions": {"torch": "2", "python": "3"},
    "attention_kernel": "sdpa",
    "compute_dtype": "float32",
    "data_fingerprint": "d" * 64,
    "nominal_flops_per_s": 400.0,
}


class Pretender:
    """Answers at once; a turn of arm b takes as many times as long as the test says."""

    slowness = 1.0
    drift = (1.0,)
    requested: list[tuple[str, str]]

    def __init__(self, name, config, data):
        self.name, self._turns = name, 0

    def call(self, do, **arguments):
        Pretender.requested.append((self.name, do))
        return copy.deepcopy(getattr(self, do)(**arguments))

    def describe(self):
        return ABOUT

    def cold_peak(self):
        return {"cold_peak_flops_per_s": 300.0}

    def warm_up(self, count):
        return {"seconds": 1.0}

    def turn(self, count):
        drift = self.drift[self._turns % len(self.drift)]
        self._turns += 1
        seconds = count * drift * (self.slowness if self.name == "b" else 1.0)
        return {
            "steps": count, "seconds": seconds, "tokens": 1000 * count, "flops": 100 * count,
            "peak_flops_per_s": 200.0,
        }  # fmt: skip

    def finish(self):
        return {"means": {}, "parts_of_step": None, "memory": {}}

    def close(self):
        pass


@pytest.fixture
def arms(monkeypatch):
    Pretender.requested = []
    monkeypatch.setattr(conductor, "Worker", Pretender)
    monkeypatch.setattr(Pretender, "slowness", 1.0)
    monkeypatch.setattr(Pretender, "drift", (1.0,))
    return Pretender


def request_for(names="ab", **changes):
    requested = {
        "arms": {name: {} for name in names},
        "digests": {name: name * 64 for name in names},
        "differences": {},
        "steps": 22,
        "trim": 4,
        "rounds": 6,
        "data": "synthetic",
        "baseline": None,
    }
    return Request(**{**requested, **changes})


def test_arms_take_turns_and_change_who_is_first(arms):
    conductor.run_benchmark(request_for(rounds=3))
    assert [name for name, do in arms.requested if do == "turn"] == ["a", "b", "b", "a", "a", "b"]
    before = [do for _, do in arms.requested[: arms.requested.index(("a", "turn"))]]
    assert before == ["describe", "describe", "cold_peak", "warm_up", "cold_peak", "warm_up"]


def test_one_step_is_counted_as_one(arms, capsys):
    conductor.run_benchmark(request_for("a", trim=1))
    assert "a: 1 warm-up step\n" in capsys.readouterr().err


def test_a_slow_arm_is_found_beside_a_drift_that_is_larger(arms, monkeypatch):
    monkeypatch.setattr(arms, "slowness", 2.0)
    monkeypatch.setattr(arms, "drift", (1.0, 7.0, 0.2, 3.0, 1.5, 0.9))
    found = conductor.run_benchmark(request_for())["comparison"]
    assert found["ratio"] == pytest.approx(0.5)
    assert found["verdict"] == "b is slower"
    assert found["coverage"] == pytest.approx(0.96875)


def test_equal_arms_are_not_told_apart(arms):
    assert conductor.run_benchmark(request_for())["comparison"]["verdict"] == "no difference shown"


def test_rates_and_shares_of_the_peaks(arms):
    report = conductor.run_benchmark(request_for("a"))
    arm = report["arms"]["a"]
    assert report["comparison"] is None
    assert report["settings"]["steps_per_turn"] == 3
    assert (arm["tokens_per_second"], arm["step_ms"], arm["flops_per_s"]) == (1000, 1000, 100)
    assert (arm["mfu_of_measured_peak"], arm["mfu_of_nominal_peak"]) == (0.5, 0.25)
    assert len(arm["turns"]) == 6


def test_a_device_that_no_table_has_gets_no_nominal_share(arms, monkeypatch):
    monkeypatch.setitem(ABOUT, "nominal_flops_per_s", None)
    arm = conductor.run_benchmark(request_for("a"))["arms"]["a"]
    assert arm["mfu_of_nominal_peak"] is None
    assert arm["mfu_of_measured_peak"] == 0.5


def test_a_baseline_of_the_same_kind_is_compared(arms, monkeypatch):
    baseline = conductor.run_benchmark(request_for())
    monkeypatch.setattr(arms, "drift", (4.0,))
    report = conductor.run_benchmark(request_for("a", baseline=baseline))
    assert report["baseline"]["ratio"] == pytest.approx(0.25)
    assert report["baseline"]["ratio_of_mfu"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (lambda base: base.update(device="another card"), "device was another card and is a card"),
        (lambda base: base["versions"].update(torch="1"), "torch was 1 and is 2"),
        (lambda base: base["versions"].update(triton="3"), "triton was 3 and is absent"),
        (lambda base: base["arms"]["a"].update(config_digest="c" * 64), "config was cccccccccccc and is aaa"),
        (lambda base: base["arms"]["a"].update(data_fingerprint="e" * 64), "documents was eeee"),
        (lambda base: base["settings"].update(trim=5), "trim was 5 and is 4"),
    ],
)
def test_a_baseline_of_another_kind_is_refused_before_a_step_is_done(arms, change, reported):
    baseline = conductor.run_benchmark(request_for("a"))
    change(baseline)
    arms.requested.clear()
    with pytest.raises(ProjectError, match="not comparable") as refusal:
        conductor.run_benchmark(request_for("a", baseline=baseline))
    assert reported in refusal.value.message
    assert refusal.value.exit_code == EXIT_CHECK_UNKNOWN
    assert arms.requested == [("a", "describe")]


@pytest.mark.parametrize("changes", [{"trim": 0}, {"rounds": 0}, {"steps": 9}, {"trim": 22}])
def test_a_request_without_a_counted_step_is_refused(changes):
    with pytest.raises(ProjectError) as refusal:
        request_for(**changes)
    assert refusal.value.exit_code == EXIT_USAGE


def test_a_request_travels_as_json(tmp_path):
    path = tmp_path / "request.json"
    path.write_text(json.dumps(request_for().as_json()), encoding="utf-8")
    assert Request(**json.loads(path.read_text(encoding="utf-8"))) == request_for()


def test_the_conductor_imports_no_torch():
    program = "import sys, neobert.bench.__main__; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
