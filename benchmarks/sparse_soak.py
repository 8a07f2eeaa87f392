"""Native sparse attention by the command line: a run that is killed and continues, and one with dead gates.

    python benchmarks/sparse_soak.py RUN_FILE WORK [--ranks 1 2] [--steps 500] [--output DIR]

RUN_FILE has two lines, `profile: nsa-smoke` and `dataset: {name: null, path: TEXT}`. The figures in
docs/measurements/nsa-smoke.json are of 31 English novels, in pieces of 256 to 65,536 characters, and speeches
of presidents: 28 million characters in JSON lines.

For each number of ranks, `train` runs with a line of metrics for every step. Some steps after the checkpoint
of its half, a rank is killed by SIGKILL, and the supervisor restarts the run from that checkpoint. Loss and
selected blocks of the next step must be the same. Then the gates of the selected branch are made extreme in
the last checkpoint, and a run from there must end by DGR002.
The figure is the median of the tokens per second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from commands import launcher, lines_of, losses_of, started
from measurement import write_measurement

from neobert.families.nsa.model import NSAForCausalLM
from neobert.metric_names import PACE, SPARSE, TRAIN_LOSS
from neobert.runfiles.checkpoint.folders import checkpoint_steps

LOST_STEPS = 8
"""Steps after the checkpoint of the half that are made twice."""
SETTLED = 0.4
"""Share of the steps before which gates and rates are not judged."""
EXTREME = 3000.0
"""Factor of the planted weights: their sigmoids are then 0 or 1."""
COMPARED = (TRAIN_LOSS, f"{SPARSE}selection_checksum", f"{SPARSE}reads_act_total")


def trained(
    run_file: Path, folder: Path, keys: Mapping[str, Any], steps: int, limit_s: float
) -> dict[str, Any]:
    """Train, kill a rank after the checkpoint of half of the steps, and return what came of the run.

    The code of a run that its limit ended is None.
    """
    half, before, log = steps // 2, {}, folder.with_suffix(".log")
    keys = {
        **keys,
        "trainer.output_dir": folder,
        "trainer.max_steps": steps,
        "trainer.save_steps": half,
        "trainer.logging_steps": 1,
    }
    ends_s = time.monotonic() + limit_s
    with started(launcher("train", run_file, keys), log) as child:
        while child.poll() is None and time.monotonic() < ends_s:
            time.sleep(0.1)
            rows = losses_of(folder)
            is_saved = half in checkpoint_steps(folder / "checkpoints")
            if not before and is_saved and rows and rows[-1]["step"] >= half + LOST_STEPS:
                before = {row["step"]: row for row in rows}
                kill_a_rank(child)
        code = child.poll()
    lines = losses_of(folder)
    after = {row["step"]: row for row in lines}
    return {
        "code": code,
        "tail": log.read_text("utf-8", "replace").splitlines()[-5:],
        "restarts": read(folder / "manifest.json").get("restarts"),
        "next_step": {
            name: [each.get(half + 1, {}).get(name) for each in (before, after)] for name in COMPARED
        },
        "health": health(lines, lines_of(folder / "heartbeat_rank0.jsonl")),
    }


def kill_a_rank(child: psutil.Process) -> None:
    """Kill one process that trains, and not the one that starts the others."""
    for process in child.children(recursive=True):
        with suppress(psutil.Error):
            words = process.cmdline()
            if "neobert.train" in words and not any("distributed" in word for word in words):
                process.kill()
                return


def health(rows: Sequence[Mapping[str, Any]], beats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the extremes of a run: loss, rates, memory, fallbacks, reads, gates."""
    late = rows[int(len(rows) * SETTLED) :]
    tenth = max(1, len(rows) // 10)
    reserved = [beat.get("gpu_mem_reserved_mib") or 0 for beat in beats]
    return {
        "lines": len(rows),
        "loss": [round(median(row[TRAIN_LOSS] for row in part), 4) for part in tenths(rows, tenth)],
        "tokens_per_second": [round(median(row[PACE] for row in part)) for part in tenths(rows, tenth)],
        "reserved_mib": [max(reserved[len(reserved) // 2 :], default=0), max(reserved, default=0)],
        "kernel_fallbacks": max((beat.get("kernel_fallbacks") or 0 for beat in beats), default=0),
        "lines_with_other_reads": sum(
            row[f"{SPARSE}reads_pred"] != row[f"{SPARSE}reads_act_total"] for row in rows
        ),
        "least_entropy": min((row[f"{SPARSE}gate_entropy_mean"] for row in late), default=None),
        "largest_share": max((row[f"{SPARSE}max_gate_mean"] for row in late), default=None),
        "collapsed": max((row[f"{SPARSE}collapse_fraction"] for row in late), default=None),
        "dead_layers": max((row[f"{SPARSE}dead_layers"] for row in rows), default=None),
        "warnings": beats[-1].get("warnings") if beats else None,
    }


def tenths(rows: Sequence[Mapping[str, Any]], size: int) -> list[Sequence[Mapping[str, Any]]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def with_dead_gates(run_file: Path, checkpoint: Path, folder: Path, limit_s: float) -> dict[str, Any]:
    """Train from a checkpoint whose gates of the selected branch are 0 or 1; return how the run ended."""
    planted = folder.with_name("planted")
    model = NSAForCausalLM.from_pretrained(checkpoint)
    with torch.no_grad():
        for block in model.model.layers:  # rows of a head: compressed, selected, sliding
            block.attn.g_proj.weight[1::3] *= EXTREME
    model.save_pretrained(planted)
    for each in checkpoint.glob("tokenizer*"):
        shutil.copy(each, planted)
    keys = {
        "trainer.output_dir": folder,
        "model.pretrained_checkpoint": planted,
        "trainer.max_steps": 40,
        "trainer.save_steps": 40,
        "trainer.logging_steps": 1,
    }
    ends_s = time.monotonic() + limit_s
    with started(launcher("train", run_file, keys), folder.with_suffix(".log")) as child:
        while child.poll() is None and time.monotonic() < ends_s:
            time.sleep(0.1)
    names = ("code", "exit_code", "step", "message")
    outcome = read(folder / "outcome.json")
    return {name: outcome.get(name) for name in names}


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run_file", type=Path)
    parser.add_argument("work", type=Path, help="folder of the runs, with room for the checkpoints")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a run")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    work = chosen.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    path, found, wrong = (chosen.output or work) / "nsa-smoke.json", dict[str, Any](), list[str]()

    def write(rate: float | None, *, is_complete: bool) -> None:
        write_measurement(path, rate, "tokens/s, all ranks", None, found, is_complete=is_complete)

    for ranks in chosen.ranks:
        folder, keys = work / f"on-{ranks}", {"distributed.nproc_per_node": ranks}
        done = trained(chosen.run_file, folder, keys, chosen.steps, chosen.limit)
        found[f"{ranks} ranks"] = done
        wrong += [f"{ranks} ranks: exit {done['code']}"] if done["code"] != 0 else []
        wrong += [f"{ranks} ranks: {name}" for name, (one, two) in done["next_step"].items() if one != two]
        print(f"{ranks} ranks", json.dumps(done), flush=True)
        rates = done["health"]["tokens_per_second"]
        write(median(rates) if rates else None, is_complete=False)
    if wrong:
        sys.exit("; ".join(wrong))
    checkpoint = (folder / "checkpoints" / "latest").resolve()
    found["dead gate"] = dead = with_dead_gates(chosen.run_file, checkpoint, work / "dead", chosen.limit)
    print("dead gate", json.dumps(dead))
    write(median(rates), is_complete=True)
    if dead["code"] != "DGR002":
        sys.exit(f"dead gate: {dead}")


if __name__ == "__main__":
    main()
