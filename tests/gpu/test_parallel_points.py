"""Points of a sweep on two GPUs at the same time: each has one for itself.

`pytest -s tests/gpu/test_parallel_points.py` prints a table.
"""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")

RATES = ("1e-3", "2e-3", "3e-3", "4e-3")
BRIEF = ("trainer.max_steps=200", "trainer.save_steps=0", "trainer.eval_steps=0", "scheduler.warmup_steps=10")
ROUNDING = 0.02
"""Relative difference of the losses of two runs on a GPU, whose atomics add in any order."""


def command(folder: Path, *words: str) -> str:
    line = [sys.executable, "-m", "launcher", *words]
    ended = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=540)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def test_each_point_has_a_device_and_the_losses_of_a_sweep_in_turn(tmp_path: Path) -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=4)) for _ in range(80)]
    texts = (" ".join(draw.choices(words, k=draw.randint(20, 200))) for _ in range(4000))
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    command(tmp_path, "init", "run.yaml", "--text", "text.txt", "--size", "tiny")
    sweep = ("train", "run.yaml", "--sweep", f"optimizer.lr={','.join(RATES)}", "--output-format", "json")
    keys = [word for value in BRIEF for word in ("--set", value)]
    losses, seconds, devices = {}, {}, {}
    for name, options in (("in turn", ()), ("two at a time", ("--parallel", "2"))):
        base = tmp_path / name.replace(" ", "-")
        start_s = time.monotonic()
        unguarded = ("--unguarded", "a test of devices, with a text made for it")
        out = command(tmp_path, *sweep, *keys, "--set", f"trainer.output_dir={base}", *unguarded, *options)
        seconds[name] = time.monotonic() - start_s
        losses[name] = [point["result"]["last_eval_loss"] for point in json.loads(out)["points"]]
        facts = [json.loads((base / f"lr={rate}" / "facts.json").read_text()) for rate in RATES]
        devices[name] = [[gpu["uuid"] for gpu in each["gpus"]] for each in facts]
    print(f"\n{'':14} {'seconds':>8}  {'devices':>7}  losses")
    for name in losses:
        used = len({uuid for each in devices[name] for uuid in each[:1]})
        print(f"{name:14} {seconds[name]:8.1f}  {used:7}  {' '.join(f'{loss:.4f}' for loss in losses[name])}")
    assert all(len(each) == 1 for each in devices["two at a time"]), "a point sees its own device alone"
    assert len({each[0] for each in devices["two at a time"]}) == 2
    assert losses["two at a time"] == pytest.approx(losses["in turn"], rel=ROUNDING)
