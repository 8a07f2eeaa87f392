"""One fine-tuning run or BLiMP score of one model, as a line of JSON.

    python benchmarks/downstream_run.py glue MODEL GLUE --folder FOLDER --task cola --seed 0 --lr 1e-4 ...
    python benchmarks/downstream_run.py blimp MODEL PAIRS --folder FOLDER --output FILE

MODEL: a folder that transformers loads. Every model is fine-tuned by the same program, transformers' Trainer
on the recipe of `evaluate glue` (`glue_peer.py`): only architecture and weights differ. GLUE holds what
`glue_small.prepare` wrote. `neobert-launch evaluate blimp` scores pairs. FOLDER is that of the job's files.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from launcher.process.child_start import dying_with_parent


def fine_tune(chosen: argparse.Namespace) -> dict[str, Any]:
    """Train on a task; return the metrics of the best evaluation.

    The code of a folder is copied before it is imported: jobs that run at a time need folders of their own.
    """
    os.environ["HF_MODULES_CACHE"] = str(chosen.folder / "modules")
    from glue_peer import train

    from neobert.evaluation.glue.tasks import TASKS

    options = argparse.Namespace(model=chosen.model, glue=chosen.data, lr=chosen.lr, max_steps=None)
    return {"lr": chosen.lr, **train(TASKS[chosen.task], chosen.seed, options)}


def blimp(chosen: argparse.Namespace) -> dict[str, Any]:
    """Score minimal pairs in a process that ends with this one."""
    command = [sys.executable, "-m", "launcher", "evaluate", "blimp", chosen.model, "--data", chosen.data]
    command += ["--pairs-per-paradigm", chosen.pairs] if chosen.pairs else []
    command += ["--output", chosen.folder, "--json"]
    answer = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        check=True,
        preexec_fn=dying_with_parent(signal.SIGTERM),
    )
    found = json.loads(answer.stdout)
    names = ("accuracy", "pairs", "ties", "phenomena", "fields", "not_comparable", "kernels")
    return {name: found[name] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["glue", "blimp"])
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--task")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pairs", type=int, help="of each paradigm; default: all")
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args()
    started_s = time.perf_counter()
    line = fine_tune(chosen) if chosen.what == "glue" else blimp(chosen)
    line["seconds"] = round(time.perf_counter() - started_s, 1)
    chosen.output.write_text(json.dumps(line) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
