"""Seconds from `neobert-launch train` to its first step, and the child processes that they go into.

    python benchmarks/first_step.py WORK [--size 53M] [--output DIR]   # WORK: see `passages.py`

The same command twice, each in a folder of its own: with empty caches of Triton, Inductor and prepared text,
and with those that the first left. The default guard is on. The clock runs from the command to the line of
metrics of the first step; child processes are seen by polling, 20 times a second.
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
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import psutil
from measurement import write_measurement

# Layers, width, rows per microbatch, steps: enough for 20 tokens per parameter, of which one is waited for.
SIZES = {"53M": (12, 512, 128, 17_000), "tiny": (2, 64, 4, 21_000)}
NO_PROFILE = {"code": "CFG005", "reason": "A benchmark of the guard itself, for which no profile is made."}
LIMITS_S = {"empty": 45.0, "warm": 20.0}
INTERVAL_S, PATIENCE_S = 0.05, 280.0
MODULE = re.compile(r"neobert(?:\.\w+)+|torch\._inductor\S*")


def write_run(work: Path, folder: Path, size: str) -> Path:
    """Write a run file for the passages; every check is on by default."""
    layers, hidden, rows, steps = SIZES[size]
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
            "max_steps": steps,
            "global_batch_size": rows,
            "per_device_train_batch_size": rows,
            "gradient_checkpointing": False,
            "save_steps": 500,
            "eval_steps": 500,
            "logging_steps": 1,
        },
        "waivers": [NO_PROFILE | {"expires": f"{date.today() + timedelta(days=30)}"}],
    }
    if size != "tiny":
        content["trainer"] |= {"mixed_precision": "bf16", "torch_compile": True}
        content["model"]["kernel_backend"] = "triton"
    path = folder / "run.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def environment(folder: Path) -> dict[str, str]:
    names = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "NEOBERT_CACHE", "XDG_CACHE_HOME")
    return {**os.environ, **{name: str(folder / "caches" / name.lower()) for name in names}}


def has_stepped(run: Path) -> bool:
    """Return whether the metrics have a line of a step: each is logged."""
    try:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return any(json.loads(line)["step"] >= 1 for line in lines)
    except (OSError, ValueError):
        return False


def name_of(process: psutil.Process) -> str:
    """Name a child by the module of the project that it runs."""
    try:
        found = MODULE.search(" ".join(process.cmdline()))
        return found.group() if found else process.name()
    except psutil.Error:
        return ""


def measure(folder: Path, run_file: Path, extra: list[str]) -> dict[str, Any]:
    """Run the command up to its first step; return seconds, and when each kind of child was there."""
    command = [sys.executable, "-m", "launcher", "train", "--config", str(run_file), *extra]
    seen: dict[int, list[Any]] = {}
    begun = time.perf_counter()
    with (folder / "output.txt").open("w") as out:
        child = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env=environment(folder))
        root, first_step_s = psutil.Process(child.pid), None
        while child.poll() is None and time.perf_counter() - begun < PATIENCE_S:
            now = round(time.perf_counter() - begun, 2)
            for process in root.children(recursive=True):
                entry = seen.setdefault(process.pid, [name_of(process), now, now])
                entry[2] = now
            if has_stepped(folder / "run"):
                first_step_s = now
                break
            time.sleep(INTERVAL_S)
        child.terminate()
        child.wait()
    parts = [{"child": name, "from_s": a, "to_s": b} for name, a, b in seen.values() if b - a > 0.3]
    tail = (folder / "output.txt").read_text()[-1500:]
    return {"seconds": first_step_s, "children": parts, **({} if first_step_s else {"output": tail})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--size", choices=list(SIZES), default="53M")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--set", action="append", default=[], help="override of the run, as `train` takes it")
    chosen = parser.parse_args()
    folder = chosen.work.resolve() / "first-step"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    run_file = write_run(chosen.work.resolve(), folder, chosen.size)
    extra = [word for override in chosen.set for word in ("--set", override)]
    found = {}
    for caches in LIMITS_S:
        shutil.rmtree(folder / "run", ignore_errors=True)
        found[caches] = measure(folder, run_file, extra)
        print(caches, json.dumps(found[caches], indent=1), flush=True)
        if chosen.output:
            write_measurement(
                chosen.output / "start-up.json", found[caches]["seconds"], "s", LIMITS_S[caches], found
            )


if __name__ == "__main__":
    main()
