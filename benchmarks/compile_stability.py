"""Recompilations and graph breaks of torch.compile over 200 steps of varying documents.

    python benchmarks/compile_stability.py WORK_DIR [--steps 200] [--kernels auto torch] [--output DIR]

The steps are the real trainer's: its data, objective, clipping and optimizer, on documents whose number and
lengths change with every microbatch. Each backend runs in its own process, which then plants both faults, a
changing shape and a graph break, and fails if they are not counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from made_up_run import FULL, run_config, write_text
from measurement import write_measurement

from neobert.config.schema import RunConfig
from neobert.parallel import World
from neobert.training.guards.degradation import WARM_UP_STEPS, CompilationLog, graph_breaks
from neobert.training.loop.assembly import assemble, make_reproducible
from neobert.training.loop.signals import Signals
from neobert.training.loop.steps import run_step

KERNELS = ("auto", "fused", "triton", "torch")


def measure(config: RunConfig, run_dir: Path, steps: int) -> dict[str, Any]:
    """Train a number of steps after the warm-up; return the compilations by step and reason."""
    world = World(config.trainer.mixed_precision)
    make_reproducible(config, world)
    trainer, log = assemble(config, run_dir, world, Signals(), None), CompilationLog()
    try:
        for _ in range(WARM_UP_STEPS):
            run_step(trainer)
        warm_up, late, losses = log.take(), [], []
        for step in range(steps):
            run_step(trainer)
            late += [{"step": step, **each._asdict()} for each in log.take()]
            losses.append(trainer.progress.loss.take())
        trainer.guard.check()
    finally:
        trainer.batches.close()
    return {
        "attention_kernel": trainer.task.attention_kernel,
        "steps": steps,
        "compiled_in_warm_up": len(warm_up),
        "recompiles": late,
        "graph_breaks": graph_breaks(),
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def planted_faults_are_counted(backend: str = "eager") -> bool:
    """Compile for a second shape, and break a graph; return whether both were counted."""

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x * 3

    log, breaks = CompilationLog(), sum(graph_breaks().values())
    static = torch.compile(double, dynamic=False, backend=backend)
    static(torch.ones(2))
    log.take()
    static(torch.ones(3))
    reasons = [each.reason for each in log.take()]
    torch.compile(broken, backend=backend)(torch.ones(2))
    is_reason_right = len(reasons) == 1 and "size mismatch" in reasons[0]
    return is_reason_right and sum(graph_breaks().values()) == breaks + 1


def run_apart(kernels: str, work: Path, steps: int) -> dict[str, Any]:
    """Measure a backend in its own process."""
    command = [sys.executable, __file__, str(work), "--child", kernels, "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stdout + done.stderr)[-3000:]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def write_figures(folder: Path, results: dict[str, dict[str, Any]], *, is_complete: bool = True) -> None:
    """Write both counts, added up over the backends; none where a backend did not run."""
    is_whole = all("error" not in result for result in results.values())
    recompiles = sum(len(result.get("recompiles", ())) for result in results.values())
    breaks = sum(sum(result.get("graph_breaks", {}).values()) for result in results.values())
    unit = f"in the steps after the first {WARM_UP_STEPS}"
    for name, count, where in (("recompiles", recompiles, unit), ("graph-breaks", breaks, "in the process")):
        value = count if is_whole else None
        write_measurement(folder / f"{name}.json", value, where, 0, results, is_complete=is_complete)


def child(kernels: str, work: Path, steps: int) -> None:
    run_dir = work / f"stability-{kernels}"
    run_dir.mkdir(exist_ok=True)
    found = measure(run_config(work, run_dir, steps=steps, kernel_backend=kernels), run_dir, steps)
    if not planted_faults_are_counted():
        sys.exit("a planted recompilation or graph break was not counted by this version of torch")
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=["auto", "torch"])
    parser.add_argument("--output", type=Path, help="folder of the JSON files")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    work = chosen.work.resolve()
    write_text(work, FULL)
    if chosen.child:
        child(chosen.child, work, chosen.steps)
        return
    results: dict[str, dict[str, Any]] = {}
    for name in chosen.kernels:
        results[name] = run_apart(name, work, chosen.steps)
        if chosen.output:
            write_figures(chosen.output, results, is_complete=len(results) == len(chosen.kernels))
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
