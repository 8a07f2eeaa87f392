"""Seconds from `neobert-launch train` to its first step, by state and child process.

    python benchmarks/first_step.py WORK [--size 53M] [--output DIR]   # WORK: see `passages.py`

The same command three times: with empty caches of Triton, Inductor and prepared text; with those that the
first left, but without the receipt that was kept; and once more, so that it reuses that receipt. The default
guard is on; the checks that the run waives, and those that a receipt replaced, are in the result. The clock
runs from the command to the line of metrics of the first step. States and children are seen by polling, 20
times a second.

All packages are compiled first, to WORK/bytecode, as pip does when it installs them: an environment with
PYTHONDONTWRITEBYTECODE and packages without bytecode would measure Python's compiler in every process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from measurement import write_measurement
from model_sizes import SIZES

ROWS = {"53M": 128, "tiny": 4}
"""Rows per microbatch."""
WAIVED = {
    "CFG005": "A benchmark of the guard itself, for which no profile is made.",
    "BUD001": "The run ends at its first step.",
}
LIMITS_S = {"empty": 45.0, "rehearsed_again": None, "warm": 20.0}
INTERVAL_S, PATIENCE_S = 0.05, 280.0
LIBRARIES, PROJECT = ("torch", "transformers"), ("launcher", "neobert", "profiles", "validators")
WITHOUT = {"TORCHINDUCTOR_CACHE_DIR", "PYTHONDONTWRITEBYTECODE"}
"""Variables that the command does not get: the first would replace the cache that is measured."""
MODULE = re.compile(r"neobert(?:\.\w+)+")
FIRST_STEP = "first step"
BEFORE_VERDICT = ("checking", "rehearsing")
WORST_BATCH = "running"
"""The first word of what the unbroken run of a rehearsal does first."""


def write_run(work: Path, folder: Path, size: str, waived: dict[str, str]) -> Path:
    """Write a run file for the passages; every check is on by default."""
    (layers, hidden), rows = SIZES[size], ROWS[size]
    expires = str(date.today() + timedelta(days=30))
    content: dict[str, Any] = {
        "model": {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": max(1, hidden // 64),
            "intermediate_size": 4 * hidden,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
        },
        "tokenizer": {"path": str(work / "tokenizer"), "allow_special_token_rewrite": True},
        "dataset": {
            "path": str(work / "train.jsonl"),
            "max_seq_length": 512,
            "validation_split": 0.02,
            "cache_dir": str(folder / "cache"),
        },
        "optimizer": {"lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.98]},
        "scheduler": {"warmup_percent": 10, "final_lr_ratio": 0.0},
        "trainer": {
            "output_dir": "run",
            "max_steps": 2000,
            "global_batch_size": rows,
            "per_device_train_batch_size": rows,
            "gradient_checkpointing": False,
            "save_steps": 500,
            "eval_steps": 500,
            "logging_steps": 1,
        },
        "waivers": [{"code": code, "reason": waived[code], "expires": expires} for code in waived],
    }
    if size != "tiny":
        content["trainer"] |= {"mixed_precision": "bf16", "torch_compile": True}
        content["model"]["kernel_backend"] = "triton"
    path = folder / "run.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def environment(folder: Path) -> dict[str, str]:
    names = ("TRITON_CACHE_DIR", "NEOBERT_CACHE", "XDG_CACHE_HOME")
    inherited = {name: value for name, value in os.environ.items() if name not in WITHOUT}
    bytecode = {"PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode")}
    return inherited | bytecode | {name: str(folder / "caches" / name.lower()) for name in names}


def package_folders() -> set[Path]:
    """Return the folders of Python's own modules, of the project, and of everything next to its libraries."""
    libraries = {folder_of(name).parent for name in LIBRARIES}
    return {Path(os.__file__).parent, *libraries, *map(folder_of, PROJECT)}


def folder_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def write_bytecode(folders: set[Path], variables: dict[str, str]) -> None:
    options = ["-W", "ignore", "-m", "compileall", "-q", "-j", "0"]
    command = [sys.executable, *options, *map(str, sorted(folders))]
    # Some packages ship a file that does not compile: no process imports it.
    subprocess.run(command, env=variables, stdout=subprocess.DEVNULL, check=False)


def states_of(folder: Path) -> dict[str, str]:
    """Return what the command and each part of its rehearsal are doing, from their files."""
    parts = {
        path.name.removesuffix("_stage_rank0"): path.read_text() or "starting"
        for path in folder.glob(".rehearsal-*/*_stage_rank0")
    }
    return parts | {"command": _state_of_command(folder, has_parts=bool(parts))}


def _state_of_command(folder: Path, *, has_parts: bool) -> str:
    run = folder / "run"
    if (run / "metrics.jsonl").exists():
        steps = [json.loads(line)["step"] for line in whole_lines(run / "metrics.jsonl")]
        return FIRST_STEP if any(step >= 1 for step in steps) else "compiling, evaluating, first step"
    if (run / "heartbeat_rank0.jsonl").exists():
        return "building the model"
    if (run / "receipt.json").exists():
        return "starting the trainer"
    return "rehearsing" if has_parts else "checking"


def parts_of(states: Sequence[tuple[float, str, str]], first_step_s: float) -> dict[str, float]:
    """Return the seconds of each part on the way to the first step; what overlaps counts once."""
    at: dict[tuple[str, str], float] = {}
    for now, part, state in states:
        at.setdefault((part, state.partition(" ")[0]), now)
        at.setdefault((part, ""), now)
    verdict_s = min(now for now, part, state in states if part == "command" and state not in BEFORE_VERDICT)
    ends = {
        "imports, checks, text": at.get(("fresh", WORST_BATCH), verdict_s),
        "compilation": at.get(("fresh", "step")),
        "measured steps, save, memory": at.get(("resumed", "")),
        "two resumed sessions": verdict_s,
        "trainer": first_step_s,
    }
    parts, before = {}, 0.0
    for name, end in ends.items():
        if end is not None:
            parts[name] = round(end - before, 2)
            before = end
    return {name: seconds for name, seconds in parts.items() if seconds}


def whole_lines(path: Path) -> list[str]:
    return [
        line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")
    ]


def name_of(process: psutil.Process) -> str:
    """Name a child by the module of the project that it runs."""
    try:
        found = MODULE.search(" ".join(process.cmdline()))
        return found.group() if found else process.name()
    except psutil.Error:
        return ""


def measure(folder: Path, run_file: Path, extra: list[str]) -> dict[str, Any]:
    """Run the command up to its first step; return its duration in seconds, its states and its children."""
    command = [sys.executable, "-m", "launcher", "train", "--config", str(run_file), *extra]
    seen: dict[int, list[Any]] = {}
    states: list[tuple[float, str, str]] = []
    current: dict[str, str] = {}
    begun = time.perf_counter()
    with (folder / "output.txt").open("w") as out:
        child = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env=environment(folder))
        root, first_step_s = psutil.Process(child.pid), None
        while child.poll() is None and time.perf_counter() - begun < PATIENCE_S and first_step_s is None:
            now = round(time.perf_counter() - begun, 2)
            for process in root.children(recursive=True):
                entry = seen.setdefault(process.pid, [now, now, ""])
                entry[1], entry[2] = now, name_of(process) or entry[2]  # its name comes with its program
            with suppress(OSError):  # a file that has just been removed
                for part, state in states_of(folder).items():
                    if current.get(part) != state:
                        current[part] = state
                        states.append((now, part, state))
                first_step_s = now if current["command"] == FIRST_STEP else None
            time.sleep(INTERVAL_S)
        child.terminate()
        child.wait()
    parts = [
        {"child": name, "from_s": a, "to_s": b}
        for a, b, name in seen.values()
        if b - a > 0.3 and name.startswith("neobert")
    ]
    tail = (folder / "output.txt").read_text()[-1500:]
    failed = {} if first_step_s else {"output": tail}
    reused = re.search(r"^reused ([^:]*):", (folder / "output.txt").read_text(), re.MULTILINE)
    codes = reused[1].split() if reused else []
    found: dict[str, Any] = {"seconds": first_step_s, "reused": codes}
    if first_step_s is not None:
        found["parts"] = parts_of(states, first_step_s)
    return found | {"states": states, "children": parts, **failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--size", choices=list(ROWS), default="53M")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--set", action="append", default=[], help="override of the run, as `train` takes it")
    parser.add_argument("--waive", action="append", default=[], help="a check that this machine cannot pass")
    chosen = parser.parse_args()
    folder = chosen.work.resolve() / "first-step"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    waived = WAIVED | dict.fromkeys(chosen.waive, "This machine cannot pass the check.")
    run_file = write_run(chosen.work.resolve(), folder, chosen.size, waived)
    extra = [word for override in chosen.set for word in ("--set", override)]
    write_bytecode(package_folders(), environment(folder))
    found: dict[str, Any] = {"waived": sorted(waived)}
    for caches in LIMITS_S:
        shutil.rmtree(folder / "run", ignore_errors=True)
        if caches == "rehearsed_again":
            shutil.rmtree(folder / "caches" / "xdg_cache_home" / "neobert" / "receipts", ignore_errors=True)
        found[caches] = measure(folder, run_file, extra)
        print(caches, json.dumps(found[caches], indent=1), flush=True)
        if chosen.output:
            seconds = found["empty"]["seconds"]
            write_measurement(chosen.output / "start-up.json", seconds, "s", LIMITS_S["empty"], found)


if __name__ == "__main__":
    main()
