"""Saves beside training: what is copied, who waits for whom, and what a failed one does."""

import errno
import os
import signal
import threading
import time

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import FileSystem

from neobert.errors import ProjectError
from neobert.export import lazy_weights
from neobert.runfiles.checkpoint import folders
from neobert.runfiles.checkpoint.manifest import read_manifest, verify_checkpoint
from neobert.training.checkpoint import publish
from neobert.training.checkpoint.save import Saver, _finite_evaluations
from neobert.training.checkpoint.shards import ShardReader, read_shards, wrap_shard_copy, write_shards
from neobert.training.checkpoint.tensors import Snapshot, _allocate_views
from neobert.training.checkpoint.writer import WriterThread
from neobert.training.loop import session, steps
from neobert.training.loop import task as built_task

EVERY_STEP = {"save_steps": 1, "save_total_limit": 0, "eval_steps": 0}


@pytest.fixture
def savers(monkeypatch):
    """The savers of the sessions that are run here."""
    made = []

    class Noted(Saver):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(session, "Saver", Noted)
    return made


@pytest.fixture
def gate(monkeypatch):
    """Hold the writer of every save until the gate is open."""
    opened, real = threading.Event(), publish.seal_checkpoint
    monkeypatch.setattr(publish, "seal_checkpoint", lambda *rest: (opened.wait(60), real(*rest)))
    yield opened
    opened.set()


def at_step(monkeypatch, step, act):
    real = steps.run_step

    def run_step(trainer):
        real(trainer)
        if trainer.progress.step == step:
            act(trainer)

    monkeypatch.setattr(steps, "run_step", run_step)


def test_training_goes_on_while_a_checkpoint_is_written(make_run, run, monkeypatch, gate, savers):
    run_dir = make_run()  # saves after step 5, and must not wait for it until step 10
    seen = {}

    def look_and_open(trainer):
        seen.update(
            saved=trainer.progress.saved_step, found=folders.find_checkpoint(run_dir / "checkpoints", "auto")
        )
        gate.set()

    at_step(monkeypatch, 9, look_and_open)
    assert run(run_dir) == 0
    assert seen == {"saved": None, "found": None}
    assert savers[0].num_saves == 3
    assert verify_checkpoint(run_dir / "checkpoints" / "5").step == 5


def test_what_is_written_late_is_what_was_there_when_it_was_saved(make_run, run, monkeypatch, gate):
    beside, first = make_run("beside"), make_run("first", trainer={"async_save": False})
    at_step(monkeypatch, 9, lambda trainer: gate.set())
    run(beside)
    run(first)
    for name in ("model.safetensors", "trainer_state/optimizer.safetensors"):
        late, prompt = (load_file(each / "checkpoints" / "5" / name) for each in (beside, first))
        assert late.keys() == prompt.keys()
        assert all(torch.equal(late[key], prompt[key]) for key in late)
        moved_on = load_file(beside / "checkpoints" / "10" / name)
        assert not all(torch.equal(late[key], moved_on[key]) for key in late)


def test_one_save_is_in_flight_and_the_next_one_waits(make_run, run, monkeypatch, savers, caplog):
    real, at_once, most = built_task.write_hf_folder, [0], [0]

    def slow(*rest):
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        while not savers[0].num_waits:  # the first save lasts until the second one is due
            time.sleep(0.005)
        real(*rest)
        at_once[0] -= 1

    monkeypatch.setattr(built_task, "write_hf_folder", slow)
    run_dir = make_run(trainer=EVERY_STEP)
    assert run(run_dir) == 0
    assert most == [1]
    assert savers[0].num_saves == 12
    assert savers[0].num_waits > 0
    assert len(savers[0].stalls_s) == len(savers[0].writes_s) == 12
    assert f"waited for the previous save: {savers[0].num_waits} " in caplog.text
    assert folders.checkpoint_steps(run_dir / "checkpoints") == list(range(1, 13))


def test_a_training_that_waits_for_each_never_waits_for_the_one_before(make_run, run, savers):
    run(make_run(trainer={**EVERY_STEP, "async_save": False}))
    assert (savers[0].num_saves, savers[0].num_waits) == (12, 0)


@pytest.fixture
def failing_saves(monkeypatch):
    """Have the disk refuse so many saves from step 4 on, and somebody ask for a stop at the first of them."""

    def fail(count):
        real, steps = publish.seal_checkpoint, []

        def seal(folder, step, *rest):
            if step >= 4 and len(steps) < count:
                steps.append(step)
                if len(steps) == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                raise OSError(28, "No space left on device")
            real(folder, step, *rest)

        monkeypatch.setattr(publish, "seal_checkpoint", seal)
        return steps

    return fail


@pytest.mark.parametrize("async_save", [True, False])
@pytest.mark.parametrize("save_steps", [1, 4, 1000])
def test_a_stop_after_a_failed_save_saves_once_more(
    make_run, run, failing_saves, outcome, exact, uninterrupted, monkeypatch, async_save, save_steps
):
    run_dir = make_run(trainer={"async_save": async_save, "save_steps": save_steps})
    with monkeypatch.context() as patch:
        if save_steps == 1000:
            at_step(patch, 5, lambda trainer: os.kill(os.getpid(), signal.SIGTERM))
        failed = failing_saves(1)
        assert run(run_dir) == 75
    assert failed
    assert outcome(run_dir)["status"] == "preempted"
    assert folders.find_checkpoint(run_dir / "checkpoints", "latest")[1].step == outcome(run_dir)["step"]
    assert run(run_dir) == 0
    assert exact(run_dir) == uninterrupted


@pytest.mark.parametrize("async_save", [True, False])
def test_a_stop_whose_second_save_fails_too_has_failed(make_run, run, failing_saves, outcome, async_save):
    run_dir = make_run(trainer={"async_save": async_save, "save_steps": 2})
    failed = failing_saves(1000)
    with pytest.raises(ProjectError, match="No space left on device") as error:
        run(run_dir)
    assert (error.value.code, outcome(run_dir)["exit_code"]) == ("CKP004", 4)
    assert len(failed) >= 2
    assert folders.find_checkpoint(run_dir / "checkpoints", "latest")[1].step == 2


def test_a_failure_in_training_lets_a_save_in_flight_end(make_run, run, monkeypatch, gate):
    run_dir = make_run()

    def fail(trainer):
        threading.Timer(0.2, gate.set).start()
        raise RuntimeError("something else")

    at_step(monkeypatch, 7, fail)
    with pytest.raises(RuntimeError, match="something else"):
        run(run_dir)
    assert folders.find_checkpoint(run_dir / "checkpoints", "auto")[1].step == 5


def test_what_reads_back_differently_is_set_apart_and_said(make_run, run, monkeypatch):
    run_dir = make_run()
    real = publish.seal_checkpoint

    def sealed_then_lost(folder, step, *rest):
        real(folder, step, *rest)
        if step == 10:
            (folder / "model.safetensors").write_bytes(b"what the disk made of it")

    monkeypatch.setattr(publish, "seal_checkpoint", sealed_then_lost)
    with pytest.raises(ProjectError, match=r"the bytes read back differ: model\.safetensors has"):
        run(run_dir)
    assert folders.find_checkpoint(run_dir / "checkpoints", "latest")[1].step == 5
    assert (run_dir / "checkpoints" / ".corrupt-10-0").is_dir()
    assert folders.checkpoint_steps(run_dir / "checkpoints") == [5]


def test_a_step_that_was_not_evaluated_is_not_judged(make_run, run):
    run_dir = make_run(trainer={"save_steps": 5, "eval_steps": 4, "metric_for_best_model": "eval/accuracy"})
    run(run_dir)
    root = run_dir / "checkpoints"
    assert [bool(read_manifest(root / step).metrics) for step in ("5", "10", "12")] == [False, False, True]
    assert folders.follow_pointer(root, "best").name == "12"


def test_what_an_evaluation_does_not_say_is_no_verdict():
    row = {"step": 3, "eval/loss": None, "eval/accuracy": 0.5, "eval/other": float("nan"), "train/loss": 1.0}
    assert _finite_evaluations(row) == {"eval/accuracy": 0.5}


def test_a_snapshot_uses_its_memory_again():
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7, dtype=torch.int64)}
    snapshot = Snapshot(torch.device("cpu"), torch.optim.SGD([torch.zeros(1, requires_grad=True)]))
    first = snapshot.take(tensors)
    where = {name: each.data_ptr() for name, each in first.items()}
    tensors["a"] += 1
    assert first["a"][0, 0] == 0
    second = snapshot.take(tensors)
    assert {name: each.data_ptr() for name, each in second.items()} == where
    assert all(torch.equal(second[name], tensors[name]) for name in tensors)
    assert snapshot.take(tensors | {"c": torch.ones(2)}).keys() == {"a", "b", "c"}


def test_slabs_hold_what_they_are_asked_for_without_overlap():
    kinds = (torch.float32, torch.int64, torch.bfloat16)
    layout = {f"{index}": (torch.Size((index % 5 + 1, 7)), kinds[index % 3]) for index in range(12)}
    views = dict(_allocate_views(layout, is_pinned=False))
    assert {name: (each.shape, each.dtype) for name, each in views.items()} == layout
    for index, each in enumerate(views.values()):
        each.fill_(index)
    assert all(bool((each == index).all()) for index, each in enumerate(views.values()))
    assert all(each.data_ptr() % each.dtype.itemsize == 0 for each in views.values())


@pytest.mark.parametrize("shards", [2, 4, 7])
def test_slabs_of_a_large_model_lose_little_memory(shards):
    """Qwen2.5-7B: each allocation is a power of two already, to which pinned ones are rounded up."""
    width, inner, head = 3584, 18_944, 128
    block = [(width, width)] * 2 + [(4 * head, width)] * 2 + [(inner, width)] * 3 + [(width,)] * 4
    shapes = [(152_064, width), *block * 28, (152_064, width)]
    rows = [(-(-rows // shards), *columns) for rows, *columns in shapes] * 3  # weights and two moments
    layout = {f"{index}": (torch.Size(shape), torch.float32) for index, shape in enumerate(rows)}
    with torch.device("meta"):
        views = list(dict(_allocate_views(layout, is_pinned=False)).values())
    slabs = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in views}
    assert all(size & (size - 1) == 0 for size in slabs.values())
    assert sum(slabs.values()) < 1.001 * sum(each.nbytes for each in views)


def test_a_writer_raises_what_its_job_raised_and_only_once():
    writer = WriterThread()
    writer.start(lambda: 1 / 0)
    writer.wait_for_previous()
    with pytest.raises(ZeroDivisionError):
        writer.settle()
    writer.settle()
    assert not writer.is_busy
    writer.close()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_shards_of_a_snapshot_are_written_without_a_second_copy(tmp_path, monkeypatch):
    """torch's writer clones parts of a larger memory: the optimizer's state would be in memory twice."""
    tensors = {"exp_avg/a": torch.arange(6.0).view(2, 3), "exp_avg/b": torch.ones(4, dtype=torch.bfloat16)}
    tensors |= {"exp_avg/none": torch.zeros(0, 3), "step/a": torch.tensor(7.0)}
    views = Snapshot(torch.device("cpu"), torch.optim.SGD([torch.zeros(1, requires_grad=True)])).take(tensors)
    cloned, clone = [], torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda each: cloned.append(each.nbytes) or clone(each))
    write_shards(tmp_path / "cloned", views, None)
    assert len(cloned) == 4
    cloned.clear()
    staged = {name: wrap_shard_copy(each, tensors[name]) for name, each in views.items()}
    write_shards(tmp_path / "staged", staged, None)
    assert sum(cloned) == 0
    targets = {name: torch.zeros_like(each) for name, each in tensors.items()}
    read_shards(ShardReader(tmp_path / "staged"), targets)
    assert all(torch.equal(targets[name], each) for name, each in tensors.items())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("full_at", range(4))
def test_a_disk_that_is_full_at_any_file_of_shards_fails_the_save(tmp_path, monkeypatch, full_at):
    tensors = {f"exp_avg/{number}": torch.full((8,), float(number)) for number in range(8)}
    monkeypatch.setattr(lazy_weights, "FILE_BYTES", 64)
    write_shards(tmp_path / "whole", tensors, None)
    files = sorted(path.name for path in (tmp_path / "whole").glob("*.distcp"))
    assert files == [f"__0_{number}.distcp" for number in range(4)]
    targets = {name: torch.zeros_like(each) for name, each in tensors.items()}
    read_shards(ShardReader(tmp_path / "whole"), targets)
    assert all(torch.equal(targets[name], each) for name, each in tensors.items())
    real = FileSystem.create_stream

    def create_stream(self, path, mode):
        if path.name == files[full_at]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, path, mode)

    monkeypatch.setattr(FileSystem, "create_stream", create_stream)
    with pytest.raises(OSError, match=r"rank 0: .*No space left on device"):
        write_shards(tmp_path / "full", tensors, None)
