"""Contrastive training of encoders: STS-B, Cranfield and Vaswani before and after.

    python benchmarks/contrastive_quality.py DATA WORK --text DIR [--seeds 0 1 2]      # encoders of 12 x 512
    python benchmarks/contrastive_quality.py DATA WORK --model DIR [--arm NAME KEY=VALUE ...]

With --text, an encoder is pretrained for each seed by `train`, with the defaults of profile gpu; with
--model, the weights of a folder are trained as they are (in fp16, they are read as fp32 first), once for each
--arm and seed. Each is trained with the run file of `init --from`, whose source is replaced by a mixture of
`contrastive_data.py`, and read by `evaluate similarity` and `evaluate retrieval`, which see the test sets
alone; the best checkpoint is that of STS-B's development set. Seeds run at the same time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from math import sqrt
from pathlib import Path
from shutil import copytree
from typing import Any

from contrastive_data import COLLECTIONS, SHAPE_12X512, build
from measurement import write_measurement
from safetensors.torch import load_file, save_file

from profiles.registry import resolve_run

SIZES = {
    "12x512": SHAPE_12X512,
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128},
}
WEIGHTS = "model.safetensors"
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Quantiles of 97.5 % by the number of values."""
UNGUARDED = ("--unguarded", "benchmark: the seeds share a device, which checks of its speed do not expect")
STS = "sts-b spearman"
MAX_LENGTH = 256
"""Tokens of a text."""
Scores = dict[str, float]


def launcher(log: Path, *words: object) -> None:
    """Run a command of the project. A failure ends the program with the end of its output."""
    command = [sys.executable, "-m", "launcher", *map(str, words)]
    with log.open("w") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        sys.exit(f"{' '.join(command)} ended with {code}:\n{log.read_text()[-3000:]}")


def pretrain(chosen: argparse.Namespace, seed: int) -> Path:
    """Train an encoder with the defaults; return its run directory."""
    folder, rows = chosen.work / f"pretrained-{seed}", chosen.rows
    settings = {
        "profile": chosen.device,
        "seed": seed,
        "model": SIZES[chosen.size],
        "tokenizer": {"vocab_size": 16_384 if chosen.device == "gpu" else 2_048, "lowercase": True},
        "dataset": {"path": str(chosen.text), "max_seq_length": 512, "validation_split": 0.01},
        "trainer": {
            "output_dir": str(folder),
            "max_steps": chosen.pretraining_steps,
            "per_device_train_batch_size": rows,
            "per_device_eval_batch_size": rows,
            **dict.fromkeys(("save_steps", "eval_steps"), chosen.pretraining_steps),
            "eval_max_batches": 8,
        },
    }
    file = chosen.work / f"{folder.name}.yaml"
    file.write_text(json.dumps(settings), encoding="utf-8")
    launcher(chosen.work / f"{folder.name}.log", "train", file, "-q", *UNGUARDED)
    return folder


def in_fp32(model: Path, folder: Path) -> Path:
    """Copy a model folder, its weights in fp32."""
    copytree(model, folder, dirs_exist_ok=True)
    weights = {
        name: each.float() if each.is_floating_point() else each
        for name, each in load_file(model / WEIGHTS).items()
    }
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def train(chosen: argparse.Namespace, name: str, seed: int, weights: Path, keys: Sequence[str]) -> Path:
    """Train an encoder on the sources; return its run directory."""
    work, folder = chosen.work, chosen.work / name
    file = work / f"{name}.yaml"
    file.unlink(missing_ok=True)
    given = [
        "--from",
        weights,
        "--task",
        "contrastive",
        "--text",
        work / "snli.jsonl",
        "--device",
        chosen.device,
    ]
    launcher(work / f"{name}.init.log", "init", *given, file)
    mixture = [{"path": str(work / f"{source}.jsonl")} for source in ("sts", "snli", "quora")]
    every = max(1, chosen.steps // 4)
    written = resolve_run(None, [file], []).config
    room = written.trainer.per_device_train_batch_size * written.dataset.max_seq_length
    values = {
        "seed": seed,
        "dataset.mixture": mixture,
        # The texts of the collections are longer than those of the sources.
        "dataset.max_seq_length": MAX_LENGTH,
        "trainer.per_device_train_batch_size": max(1, round(room / MAX_LENGTH)),
        "contrastive.score_column": "score",
        "contrastive.scored_eval_path": str(work / "sts-dev.jsonl"),
        "trainer.metric_for_best_model": "eval/spearman",
        "trainer.max_steps": chosen.steps,
        "trainer.output_dir": str(folder),
        **dict.fromkeys(("trainer.eval_steps", "trainer.save_steps"), every),
    }
    words = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()
    ]
    sets = [word for each in (*words, *keys) for word in ("--set", each)]
    launcher(work / f"{name}.log", "train", file, *sets, "-q", *UNGUARDED)
    return folder


def scores(chosen: argparse.Namespace, folder: Path, name: str, *more: str) -> Scores:
    """Return what the commands of `evaluate` report of a folder, in points. They run at the same time."""
    work = chosen.work

    def score(kind: str, metric: str, label: str, data: Path) -> float:
        output = work / f"{name}-{label}"
        words = ["--data", data, "-o", output, "--max-length", MAX_LENGTH, *more]
        launcher(work / f"{output.name}.log", "evaluate", kind, folder, *words)
        return 100 * float(json.loads((output / f"{kind}.json").read_text())["metrics"][metric])

    collections = chosen.data / "contrastive"
    jobs = {STS: ("similarity", "spearman", "sts", work / "sts-test.jsonl")}
    for each in chosen.collections:
        jobs[f"{each} ndcg@10"] = ("retrieval", "ndcg@10", each, collections / each / "beir")
    with ThreadPoolExecutor(len(jobs)) as pool:
        return dict(zip(jobs, pool.map(lambda job: score(*job), jobs.values()), strict=True))


def run_seed(chosen: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Pretrain, or take the weights; train each arm; return the scores."""
    started_s = time.perf_counter()
    if chosen.model is None:
        weights, pooling = pretrain(chosen, seed), ("--pooling", "avg")
    else:
        weights, pooling = chosen.work / "given", ()
    found: dict[str, Any] = {"seed": seed, "pretraining_s": round(time.perf_counter() - started_s, 1)}
    found["before"] = scores(chosen, weights, f"before-{seed}", *pooling)
    for arm, *keys in chosen.arm or [["trained"]]:
        started_s = time.perf_counter()
        name = f"{arm.replace(' ', '-')}-{seed}"
        folder = train(chosen, name, seed, weights, keys)
        found[arm] = scores(chosen, folder, f"after-{name}")
        found[f"{arm}, seconds"] = round(time.perf_counter() - started_s, 1)
    print(json.dumps(found), flush=True)
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean; a single value has none."""
    mean = statistics.fmean(values)
    half = STUDENT[len(values)] * statistics.stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    return mean - half, mean + half


def report(seeds: Sequence[dict[str, Any]], arms: Sequence[str]) -> dict[str, Any]:
    """Return mean, interval and gain of each score by arm."""
    found: dict[str, Any] = {}
    for score in seeds[0]["before"]:
        before = [each["before"][score] for each in seeds]
        low, high = interval(before)
        found[score] = {"before": statistics.fmean(before), "interval": [low, high]}
        for arm in arms:
            after = [each[arm][score] for each in seeds]
            mean = statistics.fmean(after)
            found[score][arm] = {
                "mean": mean,
                "gain": mean - found[score]["before"],
                "all_above_interval": min(after) > high,
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", type=Path, help="text to pretrain on")
    source.add_argument("--model", type=Path, help="folder of a trained encoder")
    parser.add_argument("--arm", nargs="+", action="append", help="NAME KEY=VALUE ...: keys of the training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pretraining-steps", type=int, default=2_600)
    parser.add_argument("--rows", type=int, default=64, help="rows of 512 tokens in a step of pretraining")
    parser.add_argument("--size", choices=list(SIZES), default="12x512")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--collections", nargs="*", choices=COLLECTIONS, default=list(COLLECTIONS))
    parser.add_argument("--most", type=int, help="rows of each source, for a dry run")
    parser.add_argument("--at-a-time", type=int, default=3)
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    chosen.work, chosen.data = chosen.work.resolve(), chosen.data.resolve()
    detail: dict[str, Any] = {"sources": build(chosen.data, chosen.work, chosen.most)}
    print(json.dumps(detail["sources"]), flush=True)
    if chosen.model is not None:
        detail["weights"] = sha256((chosen.model / WEIGHTS).read_bytes()).hexdigest()
        in_fp32(chosen.model, chosen.work / "given")
    with ThreadPoolExecutor(chosen.at_a_time) as pool:
        seeds = list(pool.map(partial(run_seed, chosen), chosen.seeds))
    arms = [arm for arm, *_ in chosen.arm or [["trained"]]]
    found = report(seeds, arms)
    for score, each in found.items():
        low, high = each["interval"]
        after = "; ".join(
            f"{arm} {one['mean']:.1f} ({one['gain']:+.1f}, above: {one['all_above_interval']})"
            for arm, one in each.items()
            if arm in arms
        )
        print(f"{score:24} before {each['before']:.1f} ({low:.1f} to {high:.1f}); {after}")
    if chosen.output:
        kind = "pretrained" if chosen.model is None else "given"
        gain = round(found[STS][arms[0]]["gain"], 2)
        path = chosen.output / f"contrastive-{kind}.json"
        write_measurement(
            path, gain, "points of STS-B Spearman gained", 0.0, {**detail, "scores": found, "seeds": seeds}
        )


if __name__ == "__main__":
    main()
