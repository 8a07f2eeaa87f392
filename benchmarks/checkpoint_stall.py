"""Cost of saving checkpoints: NeoBERT-250M in the real trainer, with asynchronous and with blocking saves.

    python benchmarks/checkpoint_stall.py WORK_DIR                    # triton kernels, on one GPU
    python benchmarks/checkpoint_stall.py WORK_DIR --kernels fused --output DIR
    python benchmarks/checkpoint_stall.py WORK_DIR --tiny             # a dry run on any machine

Each kind of save runs in its own process. The period of a step is the time between the ends of two steps, on
a GPU by device events, so that it includes everything in between. Quiet steps have no save before them and
none being written. The first third of the run, with compilation and pinning of memory, is not counted. Saves
are far enough apart for each to end before the next, because a wait for the previous save would count as a
stall.

With --output: `checkpoint-stall.json`, the longest step after a save minus a quiet step;
`checkpoint-write.json`, the seconds until a checkpoint is verified; `checkpoint-overhead.json`, the share
that one save an --interval adds to a run's time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from made_up_run import FULL, TINY, Size, run_config, write_run, write_text
from measurement import write_measurement

from neobert.config import replace
from neobert.training.checkpoint.save import Saver
from neobert.training.loop import session, steps
from neobert.training.loop.signals import Signals

WAYS = ("beside", "waiting")
RESULT = "result.json"


class Watch:
    """Hook that records the end of each step and the state of the saver."""

    def __init__(self) -> None:
        self.saver: Saver | None = None
        self.ends: list[Any] = []
        self.is_writing: list[bool] = []
        self.num_begun: list[int] = []

    def installed(self) -> Watch:
        real_step, watch = steps.run_step, self

        class Noted(Saver):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                watch.saver = self

        def run_step(trainer: Any) -> None:
            watch.num_begun.append(len(watch.saver.stalls_s))
            real_step(trainer)
            watch.ends.append(now())
            watch.is_writing.append(watch.saver.is_writing)

        session.Saver, steps.run_step = Noted, run_step
        return self

    def periods_ms(self) -> list[float]:
        return [between_ms(*pair) for pair in zip(self.ends, self.ends[1:], strict=False)]


def now() -> Any:
    if not torch.cuda.is_available():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between_ms(start: Any, end: Any) -> float:
    return (end - start) * 1000 if isinstance(start, float) else start.elapsed_time(end)


def measure(run_dir: Path) -> dict[str, Any]:
    """Run a session in this process, and group its steps by concurrent saves."""
    from neobert.train import read_config

    watch = Watch().installed()
    code = session.run_session(read_config(run_dir / "resolved.json"), run_dir, Signals())
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    saver = watch.saver
    assert code == 0
    assert saver is not None
    return summarise(watch.periods_ms(), watch.num_begun, watch.is_writing) | {
        "stalls_s": saver.stalls_s,
        "writes_s": saver.writes_s,
        "num_waits": saver.num_waits,
        "checkpoint_mib": size_mib(run_dir / "checkpoints" / "latest"),
    }


def summarise(periods_ms: list[float], num_begun: list[int], is_writing: list[bool]) -> dict[str, Any]:
    """Group the steps: quiet, first after the start of a save, and concurrent with a write.

    Period i ends with step i + 1, before which `num_begun[i + 1]` saves had started.
    """
    kinds: dict[str, list[float]] = {"quiet": [], "saved": [], "beside": []}
    for index in range(len(periods_ms) // 3, len(periods_ms)):
        is_saved = num_begun[index + 1] > num_begun[index]
        beside = is_writing[index] or is_writing[index + 1]
        kinds["saved" if is_saved else "beside" if beside else "quiet"].append(periods_ms[index])
    if not kinds["quiet"] or not kinds["saved"]:
        return {"error": "no step was quiet, or none followed a save: raise --save-steps and --steps"}
    quiet_ms = statistics.median(kinds["quiet"])
    return {
        "quiet_step_ms": quiet_ms,
        "saved_steps_ms": kinds["saved"],
        "beside_step_ms": statistics.median(kinds["beside"]) if kinds["beside"] else None,
        "stall_ms": max(kinds["saved"]) - quiet_ms,
        "cost_of_a_save_ms": extra_ms(kinds["saved"] + kinds["beside"], quiet_ms) / len(kinds["saved"]),
        "num_quiet_steps": len(kinds["quiet"]),
    }


def extra_ms(periods_ms: list[float], quiet_ms: float) -> float:
    return sum(periods_ms) - len(periods_ms) * quiet_ms


def size_mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.resolve().rglob("*") if path.is_file()) / 2**20


def run_way(work: Path, way: str, size: Size, asked: argparse.Namespace) -> dict[str, Any]:
    run_dir = work / f"saving-{way}-{time.time_ns()}"
    model = {} if asked.tiny else {"kernel_backend": asked.kernels}
    config = run_config(work, run_dir, size, steps=asked.steps, logging_steps=10, **model)
    config = replace(config, "trainer.save_steps", asked.save_steps)
    write_run(run_dir, replace(config, "trainer.async_save", way == "beside"))
    command = [sys.executable, __file__, str(run_dir), "--measure"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (run_dir / "output.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        return {"error": (done.stdout + done.stderr)[-3000:]}
    return json.loads((run_dir / RESULT).read_text(encoding="utf-8"))


def write_figures(
    folder: Path, results: dict[str, Any], interval_s: float, *, is_complete: bool = True
) -> None:
    """Write the three figures of asynchronous saves; the details have both kinds of save."""
    found = results["beside"]
    known = {} if "error" in found else found
    detail = {**results, "interval_s": interval_s}
    stall, quiet, cost = (known.get(name) for name in ("stall_ms", "quiet_step_ms", "cost_of_a_save_ms"))
    write_s = statistics.median(known["writes_s"]) if known else None
    share = None if cost is None else cost / 1000 / interval_s
    figures = (
        ("checkpoint-stall", stall, "ms beyond a quiet step; the target is one such step", quiet),
        ("checkpoint-write", write_s, "s until a checkpoint is verified, during training", None),
        ("checkpoint-overhead", share, "share of a run's time, with one save an interval", 0.005),
    )
    for name, value, unit, target in figures:
        write_measurement(folder / f"{name}.json", value, unit, target, detail, is_complete=is_complete)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--kernels", default="triton")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--save-steps", type=int, default=120)
    parser.add_argument("--interval", type=float, default=600.0, help="seconds between saves of a real run")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--output", type=Path, help="folder of the JSON files")
    parser.add_argument(
        "--measure", action="store_true", help="run WORK_DIR, which is a run, in this process"
    )
    asked = parser.parse_args()
    work = asked.work.resolve()
    if asked.measure:
        (work / RESULT).write_text(json.dumps(measure(work)), encoding="utf-8")
        return
    size = TINY if asked.tiny else FULL
    write_text(work, size)
    results: dict[str, Any] = {}
    for way in WAYS:
        results[way] = run_way(work, way, size, asked)
        if asked.output:
            write_figures(asked.output, results, asked.interval, is_complete=len(results) == len(WAYS))
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
