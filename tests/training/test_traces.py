"""Traces of a few steps: written where the config says, dropped where a session ends before them."""

import json
from types import SimpleNamespace

import pytest
import torch

from neobert.training.loop.hooks import Hook
from neobert.training.telemetry.traces import Trace, with_trace_hooks


class Note:
    """A recorder that notes when it began and where it wrote."""

    def __init__(self, log, error=None):
        self.log, self.error = log, error

    def begin(self):
        self.log.append("begin")

    def end(self, path):
        self.log.append(path)
        if self.error is not None:
            raise self.error


def observe(tmp_path, first_step, last_step, steps, error=None):
    """Run the hooks of a trace in a session that does these steps; return what was noted."""
    noted = []
    trace = Trace(first_step, last_step, "trace_rank{rank}", lambda: Note(noted, error))
    for step in steps:
        trainer = SimpleNamespace(
            progress=SimpleNamespace(step=step), run_dir=tmp_path, world=SimpleNamespace(rank=1)
        )
        trace.stop(trainer, None)
        noted.append(step)
        trace.start(trainer, None)
    trace.close()
    return noted


def test_a_trace_covers_its_steps_and_no_hook_around_them(tmp_path):
    path = tmp_path / "profile" / "trace_rank1"
    assert observe(tmp_path, 3, 4, range(6)) == [0, 1, 2, "begin", 3, path, 4, 5]
    assert observe(tmp_path, 1, 1, range(2)) == [0, "begin", path, 1]


def test_a_session_that_ends_or_begins_in_between_writes_none(tmp_path, caplog):
    assert observe(tmp_path, 3, 4, range(4)) == [0, 1, 2, "begin", 3, None]
    assert "the session ended before step 4" in caplog.text
    assert observe(tmp_path, 3, 4, range(3, 6)) == [3, 4, 5]
    assert not (tmp_path / "profile").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("no trace")])
def test_a_trace_that_cannot_be_written_is_logged(tmp_path, caplog, error):
    observe(tmp_path, 1, 1, range(3), error)
    assert "trace_rank1 could not be written" in caplog.text


def test_without_the_keys_there_is_no_hook(tmp_path):
    config = SimpleNamespace(trainer=SimpleNamespace(profile_steps=None, memory_snapshot_step=None))
    trainer = SimpleNamespace(config=config, world=SimpleNamespace(device=torch.device("cpu")))
    hook = Hook(name="x", act=print, every=1)
    with with_trace_hooks(trainer, [hook]) as hooks:
        assert hooks == [hook]


def test_a_profiled_run_computes_the_same_and_leaves_a_trace(make_run, run, exact, uninterrupted, caplog):
    run_dir = make_run(trainer={"profile_steps": [4, 5], "memory_snapshot_step": 6})
    assert run(run_dir) == 0
    assert exact(run_dir) == uninterrupted
    assert [path.name for path in (run_dir / "profile").iterdir()] == ["steps_4-5_rank0.json"]
    trace = json.loads((run_dir / "profile" / "steps_4-5_rank0.json").read_text(encoding="utf-8"))
    names = [event.get("name") for event in trace["traceEvents"]]
    assert sum(name.startswith("Optimizer.step") for name in names if name) == 2
    assert "aten::embedding" in names
    assert "no memory snapshot: trainer.memory_snapshot_step needs a CUDA device" in caplog.text
