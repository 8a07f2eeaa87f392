"""A trainer with a fault planted in it: `python -m tests.faults.planted RUN_DIR/resolved.json [--again]`.

PLANTED holds one fault for each session of the run, in order: what happens, on which rank, at which step.
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import psutil

from launcher.process.process_tree import AGENT
from neobert import train
from neobert.objectives import TokenObjective
from neobert.training.loop import steps

RANK = int(os.environ.get("RANK", "0"))
OUTLASTS_ANY_TEST = 60


def main() -> int:
    arguments = sys.argv[1:]
    faults = json.loads(os.environ.get("PLANTED", "[]"))
    session = count_session(Path(arguments[0]).parent)
    if session < len(faults):
        plant(**faults[session])
    return train.main(arguments)


def count_session(run_dir: Path) -> int:
    """Which session of the run this is, from 0."""
    file = run_dir / f"sessions_{RANK}"
    before = len(file.read_text()) if file.exists() else 0
    file.write_text("." * (before + 1))
    return before


def plant(kind: str, step: int, rank: int = 0) -> None:
    """Have a fault happen at the beginning of a step, where the rank fetches its data or computes."""
    if rank != RANK or kind == "none":
        return
    if kind in FACTORS:
        multiply_losses(step, FACTORS[kind])
        return
    if kind == "fallback":
        fall_back(step)
        return
    place = "fetch_batches" if kind == "data" else "accumulate"
    real = getattr(steps, place)

    def faulty(trainer, *rest):
        if trainer.progress.step + 1 == step:
            FAULTS[kind]()
        return real(trainer, *rest)

    setattr(steps, place, faulty)


def multiply_losses(step: int, factor: float) -> None:
    """Have this rank's objective return a multiple of its loss, from before it is wrapped by anything."""
    real, accumulate, factors = TokenObjective.forward, steps.accumulate, [1.0]

    def accumulating(trainer, *rest):
        factors[0] = factor if trainer.progress.step + 1 == step else 1.0
        return accumulate(trainer, *rest)

    TokenObjective.forward = lambda *args, **kwargs: real(*args, **kwargs) * factors[0]
    steps.accumulate = accumulating


def fall_back(step: int) -> None:
    """Have block 0 run another attention kernel than the resolved one, from a step on."""
    accumulate = steps.accumulate

    def accumulating(trainer, *rest):
        loss_sum = accumulate(trainer, *rest)
        if trainer.progress.step + 1 >= step:
            trainer.task.attention_used[0] = "eager"
        return loss_sum

    steps.accumulate = accumulating


def hold_the_interpreter() -> None:
    """A regular expression that backtracks for ever is one call in C: no other thread runs."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def kill_agent() -> None:
    """Kill torchrun, which need not be the parent: a fork of a warm interpreter has that one."""
    for process in psutil.process_iter(["cmdline"]):
        if {AGENT, sys.argv[1]} <= {*(process.info["cmdline"] or ())}:
            process.kill()


def damage_and_end() -> None:
    """Cut the weights of the newest checkpoint, as a disk that lost its last writes, and be killed."""
    checkpoints = Path(sys.argv[1]).parent / "checkpoints"
    newest = max(
        (each for each in checkpoints.iterdir() if each.name.isdigit()), key=lambda each: int(each.name)
    )
    os.truncate(newest / "model.safetensors", 100)
    os.kill(os.getpid(), signal.SIGKILL)


FACTORS = {"nan": float("nan"), "spike": 12.0}
FAULTS = {
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "damaged": damage_and_end,
    "agent": kill_agent,
    "interpreter": hold_the_interpreter,
    "data": lambda: time.sleep(OUTLASTS_ANY_TEST),
}


if __name__ == "__main__":
    train.exit_process(main())
