"""The rehearsal from outside: real children that are killed and start again, hang, die, or stand still."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from launcher.preflight import driver_memory, rehearsal, rehearsal_children
from launcher.preflight.driver_memory import externally_reported_memory, subtract_earlier_memory
from launcher.preflight.rehearsal import detect_stall, earlier_pace, probe_rehearsal, remove_abandoned_folders
from launcher.preflight.rehearsal_children import RehearsalState
from launcher.preflight.rehearsal_facts import combine_records, compare_with_uninterrupted
from launcher.probes.probe import IncompleteError, TimedOutError, UnsupportedError
from launcher.process import process_tree
from neobert.config import digest
from neobert.rehearsal import __main__ as parts
from neobert.rehearsal.__main__ import remove_if_orphaned
from tests.launcher.test_preflight import A100, RECORDED
from validators.facts import Facts
from validators.facts_gpu import GpuFacts, GpuProcessFacts
from validators.facts_io import facts_from_json, facts_to_json
from validators.facts_rehearsal import LearningFacts, OverfitFacts

PLANTED = Path(__file__).parents[1] / "rehearsal"
BEATING = """
import json, time
for seq in range(10**6):
    beat = {{"seq": seq, "phase": "train", "step": {step}, "last_progress_step": {step}}}
    open({path!r}, "a").write(json.dumps(beat) + "\\n")
    time.sleep(0.02)
"""
ANSWERED = {"device": "cuda", "device_name": "H200", "keys_read": [], "keys_replaced": []}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have the children be those of `planted.py`."""

    def plant(fault: str) -> None:
        monkeypatch.setattr(rehearsal_children, "MODULE", "planted")
        monkeypatch.setenv("PYTHONPATH", str(PLANTED))
        monkeypatch.setenv("PLANTED", fault)

    return plant


def write_tiny_run(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(f"document {n} of many words" for n in range(400)))
    run = {
        "profile": "cpu-demo",
        "model": {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 24,
        },
        "tokenizer": {"vocab_size": 128},
        "dataset": {"name": None, "path": "text.txt", "eval_samples": 20, "cache_dir": "cache"},
        "trainer": {"output_dir": "runs/tiny", "save_steps": 10},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(run), encoding="utf-8")


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_a_tiny_run_is_rehearsed_by_children_and_leaves_nothing(run_child, tmp_path):
    write_tiny_run(tmp_path)
    options = ("--level", "rehearsal", "--output-format", "json", "--save-facts", "f.json")
    answer = run_child("preflight", "-c", "run.yaml", *options)
    checks = {check["id"]: check for check in answer.json["checks"]}
    wanted = {"CFG004", "PRE003", "ATT002", "CKP006", "CKP009", "SCH002", "SCH003", "NUM005"}
    wanted |= {"TEL001", "TEL002", "TSK006"}
    assert {code: checks[code]["message"] for code in wanted if checks[code]["status"] != "pass"} == {}
    found = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))["rehearsal"]
    assert [trial["start"] for trial in found["resumes"]] == [20, 24]
    assert found["watchdog"]["survivors"] == 0
    assert list(tmp_path.glob("**/.rehearsal-*")) == []
    assert not (tmp_path / "runs" / "tiny").exists()


@pytest.mark.e2e
def test_a_launcher_that_is_killed_leaves_no_checkpoints_of_a_rehearsal(start_child, tmp_path):
    write_tiny_run(tmp_path)
    # With `fake`, only the child that begins imports torch, and not those that wait for their turn.
    killed = start_child("preflight", "-c", "run.yaml", "--level", "rehearsal", fake="finish")
    until_s = time.monotonic() + 120
    while not has_begun(tmp_path) and time.monotonic() < until_s:
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.02)
    children = psutil.Process(killed.pid).children(recursive=True)
    killed.kill()
    killed.communicate()
    assert psutil.wait_procs(children, timeout=60)[1] == []
    assert list(tmp_path.glob("**/.rehearsal-*")) == []


def has_begun(folder: Path) -> bool:
    try:
        return bool(list(folder.glob("**/.rehearsal-*/run/checkpoints")))
    except FileNotFoundError:  # a folder that the search came to has just been removed
        return False


def test_only_an_orphan_removes_the_folder_of_its_rehearsal(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "ORPHANED_S", 0.1)
    remove_if_orphaned(tmp_path, os.getppid())
    assert tmp_path.exists()
    remove_if_orphaned(tmp_path, os.getppid() + 1)
    assert not tmp_path.exists()


@pytest.mark.child
def test_a_gpu_that_is_required_is_not_replaced_by_a_processor(subject):
    with pytest.raises(UnsupportedError, match=r"no NVIDIA GPU|no GPU is visible"):
        probe_rehearsal(replace(subject, requires_gpu=True))


@pytest.mark.child
def test_a_child_that_dies_says_where_and_why(subject, planted, tmp_path):
    planted("dies")
    with pytest.raises(IncompleteError, match=r"exit 5 / the model is not there; .* ended at: step 3 of 28"):
        probe_rehearsal(subject)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "field"), [("NAN001", "diverged"), ("SPK001", "diverged"), ("TRN003", "untrained")]
)
@pytest.mark.child
def test_a_run_that_stops_itself_states_its_reason(subject, planted, tmp_path, code, field):
    planted(code)
    found = probe_rehearsal(subject)
    assert (getattr(found, field), found.num_ranks) == (f"it leapt [{code}]", 1)
    assert (found.speed, found.memory, found.schedule) == (None, None, ())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.child
def test_a_run_that_stops_for_another_error_has_told_nothing(subject, planted):
    planted("EXP004")
    with pytest.raises(IncompleteError, match=r"nowhere: it leapt \[EXP004\]; give another; .* step 3 of 28"):
        probe_rehearsal(subject)


@pytest.mark.child
def test_a_child_that_hangs_is_killed(subject, planted, monkeypatch, tmp_path):
    planted("hangs")
    monkeypatch.setattr(rehearsal, "REHEARSAL_S", 4.0)
    monkeypatch.setattr(rehearsal_children, "REHEARSAL_S", 4.0)
    with pytest.raises(TimedOutError, match=r"took over 4 s and was killed at: step 3 of 28"):
        probe_rehearsal(subject)
    assert [child for child in psutil.Process().children() if "planted" in child.cmdline()] == []
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def stage(tmp_path: Path) -> RehearsalState:
    (tmp_path / "run").mkdir()
    return RehearsalState(tmp_path, 1, time.monotonic() + 60)


@pytest.mark.parametrize("gets_further", [False, True])
@pytest.mark.child
def test_a_child_is_given_up_for_its_want_of_progress(stage, monkeypatch, gets_further):
    """It goes on writing heartbeats: those alone are no progress."""
    monkeypatch.setattr(rehearsal, "STALL_S", 0.5 if gets_further else 60.0)  # a tenth of the patience
    limit_s = 3.0 if gets_further else 1.0
    monkeypatch.setattr(rehearsal, "LIMITS", replace(rehearsal.LIMITS, step_limit_s=limit_s))
    beats = stage.folder / "run" / "heartbeat_rank0.jsonl"
    beats.touch()
    step = "seq" if gets_further else "0"
    child = subprocess.Popen(
        [sys.executable, "-c", BEATING.format(path=str(beats), step=step)], start_new_session=True
    )
    while not beats.stat().st_size:
        time.sleep(0.01)
    found = detect_stall(stage, child)
    assert (found.detected_s is None) == gets_further
    assert found.survivors == 0
    assert child.poll() is not None


def gpu(used_mib: int, *processes: GpuProcessFacts) -> GpuFacts:
    return replace(A100, memory_total_mib=143_771, memory_used_mib=used_mib, processes=processes)


HOST = RECORDED.host
STANDING_STILL = {"gpu_uuid": "GPU-1", "pid": 7}
OTHER = GpuProcessFacts(pid=8, name="", memory_mib=1_000)


def test_a_device_that_was_not_there_before_had_no_memory_in_use(monkeypatch):
    monkeypatch.setattr(driver_memory, "probe_gpus", lambda: (gpu(21_000),))
    assert externally_reported_memory(STANDING_STILL, {})["driver_mib"] == 21_000
    assert externally_reported_memory({"gpu_uuid": "GPU-2", "pid": 7}, {})["driver_mib"] is None


def test_the_system_is_asked_for_the_memory_of_a_process_that_is_known(monkeypatch):
    monkeypatch.setattr(driver_memory, "probe_gpus", lambda: ())
    assert externally_reported_memory({"pid": os.getpid()}, {})["system_rss_mib"] > 1
    assert externally_reported_memory({"pid": 2**30}, {})["system_rss_mib"] is None
    assert externally_reported_memory({}, {})["system_rss_mib"] is None


OURS, UNSEEN = replace(OTHER, pid=7, memory_mib=20_500), replace(OTHER, pid=7, memory_mib=None)
ANOTHER = replace(OTHER, pid=9)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((), (OURS,), 20_500),
        ((), (UNSEEN,), 20_000),
        ((), (replace(OTHER, pid=0),), 20_000),
        ((), (), 20_000),
        ((OTHER,), (OTHER, UNSEEN), 20_000),
        ((OTHER,), (OTHER, ANOTHER), 20_000),  # as a container tells of ours: under the host's number
        ((OTHER,), (OTHER,), 20_000),
        ((OTHER,), (UNSEEN,), None),
        ((), (OTHER, UNSEEN), None),
        ((), (OTHER, ANOTHER), None),
        ((OTHER,), (replace(OTHER, memory_mib=900), UNSEEN), None),
        ((OTHER,), (replace(OTHER, memory_mib=900), OURS), 20_500),
        ((OTHER,), (OURS,), 20_500),
        ((), (OTHER, OURS), 20_500),
        ((OTHER,), None, None),
        (None, None, 20_000),
    ],
)
def test_what_others_took_meanwhile_is_not_taken_for_the_run_s(monkeypatch, before, now, expected):
    monkeypatch.setattr(driver_memory, "probe_gpus", lambda: (replace(gpu(21_000), processes=now),))
    found = externally_reported_memory(STANDING_STILL, {"GPU-1": replace(gpu(1_000), processes=before)})
    assert found["driver_mib"] == expected
    assert ("other processes" in found["driver_reason"]) == (expected is None)


@pytest.mark.parametrize(("is_own", "expected"), [(True, 700), (False, 0), (None, 0)])
def test_only_what_is_not_known_to_be_a_rank_s_own_is_cleared_of_others(is_own, expected):
    rank: dict[str, Any] = {"gpu_uuid": "GPU-1", "is_own_context": is_own, "memory": {"context_mib": 700}}
    subtract_earlier_memory([rank, {}], {"GPU-1": gpu(1_000)})
    assert rank["memory"]["context_mib"] == expected


ROOM = {"total_mib": 140_000, "peak_reserved_mib": 9_400, "context_mib": 600}


@pytest.mark.parametrize(
    ("memory", "used_mib", "rss_mib", "expected"),
    [
        (ROOM, 1_000, 2_000, 12),
        (ROOM, 119_000, 2_000, 1),
        (ROOM, 117_000, 2_000, 2),
        (ROOM, 1_000, 30_000, 4),
        (ROOM, 1_000, 200_000, 1),
        (None, 1_000, 30_000, 4),
        (ROOM, 1_000, None, 1),
    ],
)
def test_parts_overlap_where_device_and_host_have_room(monkeypatch, memory, used_mib, rss_mib, expected):
    monkeypatch.setattr(rehearsal, "probe_host", lambda: replace(HOST, ram_available_mib=100_000))
    measured = [{"gpu_uuid": "GPU-1", "memory": memory}]
    found = rehearsal.num_fitting_processes(measured, {"system_rss_mib": rss_mib}, {"GPU-1": gpu(used_mib)})
    assert found == expected
    full = [{"gpu_uuid": "GPU-1", "memory": memory, "out_of_memory": "no room"}]
    assert rehearsal.num_fitting_processes(full, {"system_rss_mib": rss_mib}, {}) == 1


@pytest.mark.parametrize(("peak_mib", "count"), [(42_000, 3), (60_000, 2), (70_000, 1), (0.0, 0)])
def test_the_planned_peak_says_how_many_processes_fit(peak_mib, count):
    assert rehearsal.num_planned_processes(peak_mib, gpu(1_000)) == count


@pytest.mark.child
def test_the_unbroken_run_measures_once_the_others_and_the_helper_have_ended(stage):
    helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    stage.helper = helper, time.monotonic() + 600
    stage.helper_file.touch()
    stage.delay_measurements()
    assert (stage.others_file.exists(), stage.deadline_s) == (True, math.inf)
    stage.release_waiting_run()
    stage.is_alone.set()
    stage.release_waiting_run()
    assert stage.others_file.exists()
    stage.helper = helper, time.monotonic() - 1
    stage.release_waiting_run()
    assert helper.wait(60) == -9
    assert not stage.helper_file.exists()
    assert (stage.others_file.exists(), stage.deadline_s < math.inf) == (False, True)


@pytest.mark.child
def test_the_unbroken_run_evaluates_once_the_helper_has_ended_while_others_run(stage):
    stage.helper = subprocess.Popen(["true"]), time.monotonic() + 600
    stage.helper[0].wait()
    stage.helper_file.touch()
    stage.delay_measurements()
    stage.release_waiting_run()
    assert (stage.helper_file.exists(), stage.others_file.exists()) == (False, True)


class Warming:
    """An idle process whose warm-up lasts until a test ends it."""

    def __init__(self) -> None:
        self.requested: list[list[str]] = []
        self.is_warm = False

    def warm_up(self, module: str, arguments: list[str]) -> None:
        self.requested.append([module, *arguments])

    def is_warming_up(self) -> bool:
        return bool(self.requested) and not self.is_warm


@pytest.mark.child
@pytest.mark.parametrize("is_named", [True, False])
def test_the_first_resume_warms_up_before_the_unbroken_run_measures(stage, subject, is_named, monkeypatch):
    """Its memory would count as the other's where the driver names no processes: there it does not."""
    fresh, child = SimpleNamespace(pid=7), Warming()
    listed = (OTHER, GpuProcessFacts(pid=7 if is_named else 9, name="python", memory_mib=900))
    monkeypatch.setattr(driver_memory, "probe_gpus", lambda: (replace(gpu(1_000), processes=listed),))
    compiled = replace(
        subject, config=replace(subject.config, trainer=replace(subject.config.trainer, torch_compile=True))
    )
    stage.waiting, stage.helper = {"resumed": child}, (subprocess.Popen(["true"]), time.monotonic() + 600)
    stage.helper[0].wait()
    stage.early = rehearsal.early_warm_up(stage, compiled, fresh)
    stage.delay_measurements()
    stage.is_alone.set()
    stage.release_waiting_run()
    assert (child.requested, stage.others_file.exists()) == ([], True)  # the step is not compiled yet
    stage.result("compiled", 0).write_text("{}")
    for _ in range(2):
        stage.release_waiting_run()
    words = ["neobert.rehearsal.warm_up", str(stage.resolved), "step"]
    assert child.requested == ([words] if is_named else [])
    assert stage.others_file.exists() is is_named
    child.is_warm = True
    stage.release_waiting_run()
    assert not stage.others_file.exists()


def test_no_resume_warms_up_early_where_graphs_are_cached(stage, subject):
    stage.waiting = {"resumed": Warming()}
    assert rehearsal.early_warm_up(stage, subject, SimpleNamespace(pid=7)) is None


@pytest.mark.child
@pytest.mark.parametrize(
    ("room", "trains_next", "waited_for"),
    [
        (3, True, []),
        (3, False, ["resumed_again", "resumed"]),
        (2, True, ["resumed", "resumed_again", "resumed"]),
    ],
)
def test_a_trainer_with_room_does_not_wait_for_memory_of_killed_parts(
    stage, room, trains_next, waited_for, monkeypatch
):
    children: dict[str, subprocess.Popen[bytes]] = {}
    waits: list[str] = []

    def start_part(_: RehearsalState, name: str) -> subprocess.Popen[bytes]:
        assert all(child.poll() is not None or room > 2 for child in children.values())
        return children.setdefault(name, subprocess.Popen(["sleep", "600"], start_new_session=True))

    def kill_tree(child: subprocess.Popen[bytes]) -> None:
        waits.extend(name for name, each in children.items() if each is child)
        process_tree.kill_tree(child)

    monkeypatch.setattr(rehearsal_children, "start_part", start_part)
    monkeypatch.setattr(rehearsal, "wait_for_results", lambda *_: [])
    for module in (rehearsal, rehearsal_children):
        monkeypatch.setattr(module, "kill_tree", kill_tree)
    rehearsal._resume_twice(stage, room=room, trains_next=trains_next)
    assert waits == waited_for
    assert [child.wait(60) for child in children.values()] == [-9, -9]


def test_what_a_killed_launcher_left_is_removed(tmp_path):
    elsewhere = f"ours-{2**22 + 1}-17-e"
    for name in (f"ours-{2**22 + 1}-a", f"ours-{os.getpid()}-b", "ours-c", f"other-{2**22 + 1}-d", elsewhere):
        (tmp_path / name / "run").mkdir(parents=True)
    remove_abandoned_folders(tmp_path, "ours-")
    assert {path.name for path in tmp_path.iterdir()} == {
        f"ours-{os.getpid()}-b",
        "ours-c",
        f"other-{2**22 + 1}-d",
        elsewhere,
    }


@pytest.mark.parametrize(
    ("config_digest", "device_name", "expected"),
    [(None, "H200", 84_000.0), ("0" * 64, "H200", None), (None, "A100", None)],
)
@pytest.mark.parametrize("is_beside", [True, False])
def test_an_earlier_pace_is_that_of_the_same_config_and_device(
    subject, tmp_path, config_digest, device_name, expected, is_beside
):
    beside = tmp_path / "results"
    folder = beside if is_beside else subject.output_dir
    folder.mkdir(parents=True)
    found = {"rehearsal": {"device_name": "H200", "speed": {"tokens_per_second": 84_000.0}}}
    (folder / "facts.json").write_text(json.dumps(found))
    receipt = {"config_digest": config_digest or digest(subject.config)}
    (folder / "receipt.json").write_text(json.dumps(receipt))
    assert earlier_pace(replace(subject, diff_file=beside / "diff"), device_name) == expected
    assert earlier_pace(subject, device_name) == (None if is_beside else expected)


def line(step: int, **more: Any) -> dict[str, Any]:
    shared = {
        "cursor": step,
        "batches": "a",
        "generators": "g",
        "tokens_total": step,
        "learning_rate": 0.1,
        "schedule_position": step,
    }
    return {"step": step, "loss": 2.0, **shared, **more}


FRESH = {"trace": [line(step) for step in range(1, 29)], "state": {"w": "1", "m": "2"}}


@pytest.mark.parametrize(
    ("state", "steps", "wanted"),
    [
        ({"w": "1", "m": "2"}, {}, {}),
        ({"w": "1", "m": "3"}, {}, {"altered_tensors": ["m"]}),
        ({"w": "1"}, {}, {"altered_tensors": ["m"]}),
        ({"w": "1", "m": "2", "v": "3"}, {}, {"altered_tensors": ["v"]}),
        ({"w": "1", "m": "2"}, {22: {"batches": "b"}}, {"differing": ["data"]}),
        ({"w": "1", "m": "2"}, {24: {"generators": "h"}}, {"differing": ["random generators"]}),
        (
            {"w": "1", "m": "2"},
            {21: {"loss": 2.2}},
            {"first_loss_difference": 0.1, "largest_loss_difference": 0.1},
        ),
        ({"w": "1", "m": "2"}, {23: {"loss": 1.8}}, {"largest_loss_difference": 0.1}),
    ],
)
def test_a_resume_is_held_against_the_unbroken_run(state, steps, wanted):
    resumed = {"start": 20, "state": state, "trace": [line(n, **steps.get(n, {})) for n in range(21, 25)]}
    found = compare_with_uninterrupted([FRESH], [resumed], [FRESH["state"]], 20)
    same = {
        "altered_tensors": [],
        "differing": [],
        "first_loss_difference": 0.0,
        "largest_loss_difference": 0.0,
    }
    assert (found["start"], found["expected_start"], found["compared_steps"]) == (20, 20, 4)
    for name, value in (same | wanted).items():
        assert found[name] == (pytest.approx(value) if isinstance(value, float) else value)


def test_the_fullest_device_counts():
    memory = {"total_mib": 10, "context_mib": 1, "peak_allocated_mib": 5}
    memory |= {"alloc_retries": 0, "growth_mib_per_step": 0}
    ranks = [{**ANSWERED, "memory": {**memory, "peak_reserved_mib": peak}} for peak in (6, 8, 7)]
    found = combine_records(ranks, [], {"system_rss_mib": None}, None, 3, 1.0)
    assert found.memory is not None
    assert (found.memory.peak_reserved_mib, found.memory.peak_mib) == (8, 9)


def test_one_rank_without_room_is_enough():
    full = {**ANSWERED, "out_of_memory": "running the worst-case microbatch: no room"}
    for ranks in ([ANSWERED, full], [{}, full], [full, {}]):
        found = combine_records(ranks, [], {}, None, 2, 1.0)
        assert (found.out_of_memory, found.device) == ("running the worst-case microbatch: no room", "cuda")


def test_a_loss_that_is_no_number_is_none_and_can_be_written():
    learning = {"vocab_size": 128, "initial_loss": math.inf}
    learning["overfit"] = {"steps": 10, "first": math.nan, "last": math.nan}
    accumulation = {"num_targets": [0, 0], "relative_difference": math.nan}
    found = combine_records(
        [{**ANSWERED, "learning": learning, "accumulation": accumulation}], [], {}, None, 1, 1.0
    )
    assert found.learning == LearningFacts(
        vocab_size=128, initial_loss=None, overfit=OverfitFacts(steps=10, first=None, last=None)
    )
    assert found.accumulation is not None
    assert found.accumulation.relative_difference is None
    assert facts_from_json(facts_to_json(Facts(rehearsal=found))).rehearsal == found


@pytest.mark.parametrize("step", [21, 24])
def test_a_loss_that_is_no_number_after_a_resume_is_not_the_same(step):
    trace = [line(n, loss=math.nan if n == step else 2.0) for n in range(21, 25)]
    found = compare_with_uninterrupted(
        [FRESH], [{"start": 20, "state": FRESH["state"], "trace": trace}], [FRESH["state"]], 20
    )
    assert math.isnan(found["largest_loss_difference"])
    assert math.isnan(found["first_loss_difference"]) == (step == 21)


def test_an_answer_that_makes_no_sense_is_no_facts():
    with pytest.raises(IncompleteError, match=r"report is invalid: .* worst_case.longest: field required"):
        combine_records([{**ANSWERED, "worst_case": {"num_tokens": 1}}], [], {}, None, 1, 1.0)
