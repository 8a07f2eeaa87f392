"""A trainer that waits for its start has imported torch and its compiler, and takes no memory of a device."""

import json
import os

from launcher.process.trainer_process import trainer_packages
from launcher.process.waiting_child import start_waiting_child
from neobert.config import replace
from neobert.config.schema import RunConfig

NOTE = """
import json, os, sys
imported = sorted({"torch", "torch._inductor.compile_fx", "neobert.training.loop.session"} & {*sys.modules})
import pynvml, torch
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
pids = [each.pid for each in pynvml.nvmlDeviceGetComputeRunningProcesses(device)]
print(json.dumps([imported, torch.cuda.is_initialized(), os.getpid() in pids]), flush=True)
"""


def test_until_its_start_a_trainer_has_no_context_on_a_device(tmp_path, monkeypatch):
    (tmp_path / "note.py").write_text(NOTE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with start_waiting_child(
        "note", trainer_packages(replace(RunConfig(), "trainer.torch_compile", True))
    ) as child:
        started = child.start([], tmp_path / "log", tmp_path / "error.json")
        assert started is not None
        assert started.wait(120) == 0, (tmp_path / "log").read_text()
    imported, has_context, is_listed = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert imported == ["neobert.training.loop.session", "torch", "torch._inductor.compile_fx"]
    assert (has_context, is_listed) == (False, False)
