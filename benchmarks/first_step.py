"""Seconds from `neobert-launch train` to the first step of a new user's run, by what the command is doing.

    python benchmarks/first_step.py WORK TEXT [--size small] [--device gpu] [--output DIR]

TEXT is a file or folder of text: 35 MB for the figures. The run file is that of `neobert-launch init`. The
same command again and again: unmeasured, because it writes the bytecode of all that it imports, as an
installation does; with empty caches of Triton, Inductor and prepared text; three times with those that this
left, but without its receipt, of which the median counts; and with the receipt. The clock runs from the
command to the line of metrics of the first step. What the command does is read from the files of the run, and
its processes are seen, 20 times a second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from measurement import write_measurement

CACHES = {"unmeasured": 1, "empty": 1, "warm": 3, "receipt": 1}
"""Starts with each state of the caches."""
GOALS_S = {"empty": 30.0, "warm": 15.0}
INTERVAL_S, PATIENCE_S = 0.05, 90.0
WITHOUT = {"TORCHINDUCTOR_CACHE_DIR", "PYTHONDONTWRITEBYTECODE"}
"""Variables that the command does not get: the first would replace the cache that is measured."""
FIRST_STEP = "first step"
State = tuple[float, str]


def environment(folder: Path) -> dict[str, str]:
    names = ("TRITON_CACHE_DIR", "NEOBERT_CACHE", "XDG_CACHE_HOME")
    inherited = {name: value for name, value in os.environ.items() if name not in WITHOUT}
    return inherited | {name: str(folder / "caches" / name.lower()) for name in names}


def state_of(run: Path) -> str:
    """Return what the command is doing, by the files of the run."""
    if (run / "metrics.jsonl").exists():
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        steps = [json.loads(line)["step"] for line in lines if line.endswith("\n")]
        return FIRST_STEP if any(step >= 1 for step in steps) else "evaluating, compiling"
    if (run / "heartbeat_rank0.jsonl").exists():
        return "building the model"
    return "starting the trainer" if (run / "receipt.json").exists() else "checking"


def parts_of(states: Sequence[State]) -> dict[str, float]:
    """Return the seconds of each state before the first step."""
    return {state: round(end - begun, 2) for (begun, state), (end, _) in pairwise(states)}


def measure(folder: Path, extra: Sequence[str]) -> dict[str, Any]:
    """Run the command up to its first step; return its seconds, their parts and its processes."""
    run = folder / "run"
    command = [sys.executable, "-m", "launcher", "train", str(folder / "run.yaml"), *extra]
    seen: dict[int, list[Any]] = {}
    states: list[State] = []
    begun_s = time.perf_counter()
    with (folder / "output.txt").open("w") as out:
        child = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env=environment(folder))
        root = psutil.Process(child.pid)
        while child.poll() is None and time.perf_counter() - begun_s < PATIENCE_S:
            now = round(time.perf_counter() - begun_s, 2)
            for process in root.children(recursive=True):
                entry = seen.setdefault(process.pid, [now, now, ""])
                entry[1], entry[2] = now, module_of(process) or entry[2]  # its name comes with its program
            if not states or states[-1][1] != state_of(run):
                states.append((now, state_of(run)))
            if states[-1][1] == FIRST_STEP:
                break
            time.sleep(INTERVAL_S)
        child.terminate()
        child.wait()
    if not states or states[-1][1] != FIRST_STEP:
        sys.exit(f"no first step: {(folder / 'output.txt').read_text()[-3000:]}")
    processes = [{"module": name, "from_s": a, "to_s": b} for a, b, name in seen.values() if name]
    return {"seconds": states[-1][0], "parts": parts_of(states), "processes": processes}


def module_of(process: psutil.Process) -> str:
    """Return the module of the project that a process runs; empty for another program."""
    try:
        return next((word for word in process.cmdline() if word.startswith("neobert.")), "")
    except psutil.Error:
        return ""


def forget(folder: Path, caches: str) -> None:
    """Remove the run, and the caches that a start is measured without."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    if caches == "empty":
        shutil.rmtree(folder / "caches", ignore_errors=True)
    if caches == "warm":
        shutil.rmtree(folder / "caches" / "xdg_cache_home" / "neobert" / "receipts", ignore_errors=True)


def start(folder: Path, caches: str, extra: Sequence[str]) -> dict[str, Any]:
    forget(folder, caches)
    found = measure(folder, extra)
    print(caches, json.dumps(found, indent=1), flush=True)
    return found


def median(starts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the start that took the median time, with the seconds of all."""
    seconds = [each["seconds"] for each in starts]
    return {**starts[seconds.index(sorted(seconds)[len(seconds) // 2])], "of_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--size", default="small", help="as `init` takes it")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--set", action="append", default=[], help="override of the run, as `train` takes it")
    chosen = parser.parse_args()
    folder = chosen.work.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    given = ["--size", chosen.size, "--device", chosen.device, "--text", str(chosen.text.resolve())]
    init = [sys.executable, "-m", "launcher", "init", *given, str(folder / "run.yaml")]
    subprocess.run(init, check=True, env=environment(folder), stdout=subprocess.DEVNULL)
    keys = (f"trainer.output_dir={folder / 'run'}", "trainer.logging_steps=1", *chosen.set)
    found: dict[str, Mapping[str, Any]] = {}
    words = [word for key in keys for word in ("--set", key)]
    for caches, number in CACHES.items():
        found[caches] = median([start(folder, caches, words) for _ in range(number)])
        if chosen.output and caches != "unmeasured":
            starts = {name: each for name, each in found.items() if name != "unmeasured"}
            detail = {**starts, "goals_s": GOALS_S, "run_file": (folder / "run.yaml").read_text()}
            seconds, is_complete = found.get("warm", found["empty"])["seconds"], set(found) == set(CACHES)
            path = chosen.output / "first-step.json"
            write_measurement(path, seconds, "s", GOALS_S["warm"], detail, is_complete=is_complete)
    print(*(f"{name}: {each['seconds']} s" for name, each in found.items()), sep=", ")


if __name__ == "__main__":
    main()
