"""A decoder in shards over several GPUs, by the command line: trained, killed by SIGKILL, and continued.

    python benchmarks/fully_sharded.py 3b WORK --tokenizer FOLDER --save-steps 20 --steps 8 --alone
    python benchmarks/fully_sharded.py 7b WORK --tokenizer FOLDER --sessions 4 4 --save-steps 20
    python benchmarks/fully_sharded.py 3b WORK --tokenizer FOLDER --sessions 4 2x2 2 --saves 2 --save-steps 60
    python benchmarks/fully_sharded.py toy WORK --steps 6 --save-steps 10        # on a CPU

The shapes are those of Qwen2.5-3B and 7B with random weights; FOLDER has their tokenizer (vocab.json and
merges.txt do). The text is made up: documents of 150 words in the median, of 30,500 invented words, packed
into rows of 4,096 tokens, two of them a microbatch (7b: one), with recomputation. The profile is `gpu`; the
plan is that of a node of H100.

The first session runs until it has `--saves` checkpoints, and `--steps` steps after the last one; then all
its processes are killed. Each further session continues from that checkpoint for `--steps` steps, on the same
samples. A session is a number of ranks, or 2x2: two replicas of the model, each in two shards. With --alone,
one GPU trains a whole model, with as many tokens per GPU and step. WORK needs room for three checkpoints (37
GB each for 3b, 91 for 7b) and is best in memory (/dev/shm): a save has to be written before the next begins.

The figure is the tokens per second of a GPU in the first session over those of one GPU alone, both the median
of the steps before the first save. Also measured: losses after each continuation, against those of the first
session; device memory, against the plan; host memory of each rank; seconds that each save blocked training;
and whether `from_pretrained` returns the saved weights, with the buffers and ties of a new model. The file
has every session that ended, also if `--seconds` are over before the last one.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil
import torch
from accelerate import init_empty_weights
from commands import REASON, apart, launcher, lines_of, losses_of, output, started
from made_up_run import documents_path, write_documents
from measurement import write_measurement
from memory_in_use import Watched
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from neobert.metric_names import PACE, TRAIN_LOSS
from neobert.runfiles.checkpoint.folders import checkpoint_steps

TARGET = 0.85
WARM = 5
"""First steps of a session, which are not timed."""
SAVED = re.compile(r"saved checkpoint (\d+) in ([\d.]+) s \(training blocked ([\d.]+) s\)")
WAITED = re.compile(r"the save of step (\d+) waited ([\d.]+) s")
QWEN = {"model_type": "qwen2", "max_position_embeddings": 32_768, "rope_theta": 1e6, "rms_norm_eps": 1e-6}
SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size", "tie_word_embeddings"),
)
SHAPES = {
    "3b": (2048, 36, 16, 2, 11_008, 151_936, True),
    "7b": (3584, 28, 28, 4, 18_944, 152_064, False),
    "toy": (32, 1, 2, 1, 64, 512, True),
}
"""The last one is a Llama, whose tokenizer is trained on the text."""
TEXT_WORDS = {"3b": 1_500_000, "7b": 1_500_000, "toy": 20_000}
ROW_TOKENS = {"3b": 4096, "7b": 4096, "toy": 128}
ROWS = {"3b": 2, "7b": 1, "toy": 1}
"""Of a microbatch. With one row of the first shape, a GPU waits for its host in forward passes."""
MICROBATCHES = {"3b": 2, "7b": 2, "toy": 2}
"""Of a rank in a step."""
RUN, PLAN = "run.yaml", "plan.yaml"
PROFILE, PLANNED = ("gpu", "qwen-7b-4xh100") if torch.cuda.is_available() else ("cpu", "cpu")
"""Profiles of the sessions and of the plan, which knows the memory of an H100. Neither sets a key of the
model or of a step. A production run would be rehearsed for minutes before each session."""


class Layout(NamedTuple):
    """Ranks of a session, and copies of the model over them."""

    ranks: int
    replicas: int = 1

    @classmethod
    def of(cls, text: str) -> Layout:
        """Read RANKS or REPLICASxSHARDS."""
        *copies, shards = map(int, text.split("x"))
        replicas = copies[0] if copies else 1
        return cls(shards * replicas, replicas)

    def keys(self, microbatches: int, rows: int = 1) -> dict[str, Any]:
        """Return the keys of a session whose ranks have this number of microbatches in a step, together.

        `rows`: of a microbatch.
        """
        return {
            "distributed.mode": "fsdp2" if self.ranks > 1 else "replicated",
            "distributed.nproc_per_node": self.ranks,
            "distributed.replicas": self.replicas,
            "trainer.gradient_accumulation_steps": microbatches // self.ranks,
            "trainer.global_batch_size": microbatches * rows,
        }


def write_run_file(work: Path, shape: str, tokenizer: Path | None) -> Path:
    """Write text, config.json and run files of a shape; return the one of the sessions."""
    if not documents_path(work).exists():
        write_documents(documents_path(work), TEXT_WORDS[shape])
    kind, on_gpu = QWEN if tokenizer else {"model_type": "llama"}, torch.cuda.is_available()
    model = kind | dict(zip(SIZES, SHAPES[shape], strict=True))
    (work / "config.json").write_text(json.dumps(model, indent=1), encoding="utf-8")
    vocab_size = model["vocab_size"]
    run = {
        "task": "causal",
        "pretraining": None,
        "model": {"type": "hf", "config": str(work), "vocab_size": vocab_size},
        "tokenizer": {"vocab_size": vocab_size} if tokenizer is None else {"path": str(tokenizer)},
        "dataset": {
            "path": str(documents_path(work)),
            "max_seq_length": ROW_TOKENS[shape],
            "validation_split": None,
            "num_proc": 8 if on_gpu else 1,
        },
        "optimizer": {"name": "adamw", "lr": 3e-4},
        "scheduler": {"warmup_steps": 20},
        "trainer": {
            "per_device_train_batch_size": ROWS[shape],
            "gradient_checkpointing": True,
            "mixed_precision": "bf16" if on_gpu else "no",
            "save_total_limit": 2,
            "torch_compile": on_gpu,
            "max_steps": 1000,
            "eval_steps": 0,
            "logging_steps": 1,
        },
    }
    for name, profile in ((RUN, PROFILE), (PLAN, PLANNED)):
        content = {"profile": profile} | run
        (work / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return work / RUN


def session(
    run_file: Path,
    run_dir: Path,
    keys: Mapping[str, Any],
    *receipt: str,
    saves: int,
    steps: int,
    end_s: float,
) -> dict[str, Any]:
    """Train until `saves` checkpoints were verified, and `steps` steps after the newest; then kill the run.

    Steps that an earlier session made too are replaced in metrics.jsonl when the run continues.
    """
    command = launcher("train", run_file, keys, *receipt, "--resume", "auto", "--unguarded", REASON)
    earlier = losses_of(run_dir)
    resumed_step = max(checkpoint_steps(run_dir / "checkpoints"), default=0)
    watched, log = Watched(), run_dir.with_suffix(".log")
    began_s, first_step_s, rows, problem = time.monotonic(), None, [], None
    with started(command, log) as child:
        while not problem:
            time.sleep(0.5)
            took_s = time.monotonic() - began_s
            watched.look(child)
            rows = [row for row in losses_of(run_dir) if row not in earlier]
            first_step_s = first_step_s or (took_s if rows else None)
            saved = saves_of(run_dir, resumed_step)
            newest = saved[-1]["step"] if saved else resumed_step
            if rows and len(saved) >= saves and rows[-1]["step"] >= newest + steps:
                break
            if child.poll() is not None or time.time() > end_s:
                problem = f"ended after {took_s:.0f} s: {log.read_text(encoding='utf-8')[-2000:]}"
    return {
        "keys": keys,
        "problem": problem,
        "resumed_step": resumed_step,
        "first_step_s": first_step_s,
        "seconds": took_s,
        "rows": [{name: row[name] for name in ("step", TRAIN_LOSS, PACE)} for row in rows],
        "saves": saved,
        "waits_s": {step: float(waited) for step, waited in WAITED.findall(log_of(run_dir))},
        "tokens_per_second": quiet_rate(rows, keys["trainer.save_steps"]),
        "host_mib": watched.host_mib,
        "device_mib": watched.device_mib,
        "allocator": {path.stem: allocator(path) for path in sorted(run_dir.glob("heartbeat_rank*.jsonl"))},
    }


def saves_of(run_dir: Path, resumed_step: int) -> list[dict[str, Any]]:
    """Return the saves that a session wrote and verified, by its log."""
    return [
        {"step": int(step), "written_s": float(written), "blocked_s": float(blocked)}
        for step, written, blocked in SAVED.findall(log_of(run_dir))
        if int(step) > resumed_step
    ]


def log_of(run_dir: Path) -> str:
    path = run_dir / "logs" / "rank_0.log"
    return path.read_text("utf-8", "replace") if path.exists() else ""


def checked(run_file: Path, keys: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    """Check all but the GPUs; return the option that starts the run by these checks, if they passed.

    Checks of the GPUs build and compile the model: all of it if it is whole, which takes minutes.
    """
    levels = ("--level", "static,host,data", "--output", str(folder))
    command = launcher("preflight", run_file, keys, *levels)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    return () if done.returncode else ("--receipt", str(folder))


def quiet_rate(rows: Sequence[Mapping[str, Any]], every: int) -> float | None:
    """Return the median rate of all ranks, without the first steps and those after a save."""
    first = rows[0]["step"] if rows else 0
    last = (first // every + 1) * every if every else math.inf
    quiet = [row[PACE] for row in rows if first + WARM <= row["step"] <= last]
    return median(quiet) if quiet else None


def allocator(heartbeat: Path) -> dict[str, float]:
    """Return the most memory of a rank that its allocator had in use, in percent of the GPU, and reserved."""
    names, rows = ("gpu_mem_peak_percent", "gpu_mem_reserved_mib"), lines_of(heartbeat)
    return {name: max((row.get(name) or 0.0 for row in rows), default=0.0) for name in names}


def plans(plan_file: Path, sessions: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what `plan` predicts of each session, and the codes of `lint` for a whole model on each rank."""
    names = ("num_parameters", "memory_mib", "checkpoint_mib", "tokens_per_second")
    found = {}
    for title, keys in sessions.items():
        planned = launcher("plan", plan_file, keys, "--json")
        values = json.loads(output(planned))["plan"]
        is_whole = {**keys, "distributed.mode": "replicated"}
        whole = launcher("lint", plan_file, is_whole, "--json")
        codes = sorted({each["code"] for each in json.loads(output(whole))["findings"]})
        found[title] = {key: values[key]["value"] for key in names} | {"codes_if_replicated": codes}
    return found


def reading(folder: Path) -> dict[str, Any]:
    """Compare what `from_pretrained` returns with the files of a checkpoint, and with a new model."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    own, differing, num_read = model.state_dict(), [], 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (not a mapping)
                num_read += 1
                if not torch.equal(own[name], file.get_tensor(name)):
                    differing.append(name)
    with init_empty_weights(include_buffers=False):
        new = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    new.tie_weights()
    buffers = dict(new.named_buffers())
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "files": sorted(path.name for path in folder.glob("*.safetensors")),
        "tensors": num_read,
        "differing": differing,
        "buffers": {name: torch.equal(each, buffers[name]) for name, each in model.named_buffers()},
        "ties": ties(model),
        "ties_of_new": ties(new),
    }


def ties(model: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, each in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(each), []).append(name)
    return [each for each in names.values() if len(each) > 1]


def ratio(found: Mapping[str, Any]) -> float | None:
    """Return the rate of a GPU in the first session, over that of one GPU alone."""
    rates = {title: each["tokens_per_second"] for title, each in found["sessions"].items()}
    together, alone = next(iter(rates.values()), None), rates.get("alone")
    ranks = next(iter(found["sessions"].values()))["keys"]["distributed.nproc_per_node"]
    return round(together / ranks / alone, 4) if together and alone else None


def line(title: str, done: Mapping[str, Any]) -> str:
    """Return what was seen of a session in one line, and what went wrong in further ones."""
    rate, used = done["tokens_per_second"] or 0, max(done["device_mib"], default=0)
    return (
        f"{title:12} from step {done['resumed_step']:4}: {len(done['rows'])} steps, {rate:,.0f} tokens/s, "
        f"memory {used:,.0f} MiB, first step {done['first_step_s']} s, all {done['seconds']:.0f} s, "
        f"losses apart {done['losses']['largest']}, saves {done['saves']}, waits {done['waits_s']}"
        + (f"\nPROBLEM: {done['problem']}" if done["problem"] else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("work", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="folder of Qwen2.5's tokenizer")
    parser.add_argument("--sessions", nargs="+", default=["2", "2"], metavar="LAYOUT")
    parser.add_argument("--saves", type=int, default=1)
    parser.add_argument("--save-steps", type=int, default=40)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument(
        "--seconds", type=float, default=560.0, help="of all sessions, from the start of this process"
    )
    parser.add_argument("--alone", action="store_true", help="also train a whole model on one GPU")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of each session")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    end_s = psutil.Process().create_time() + chosen.seconds  # importing torch takes some of them
    work, name = chosen.work.resolve(), f"fsdp2-{chosen.shape}"
    work.mkdir(parents=True, exist_ok=True)
    run_file = write_run_file(work, chosen.shape, chosen.tokenizer and chosen.tokenizer.resolve())
    layouts, per_rank = [Layout.of(each) for each in chosen.sessions], MICROBATCHES[chosen.shape]
    rows = ROWS[chosen.shape]
    total, more = per_rank * layouts[0].ranks, dict(each.split("=", 1) for each in chosen.set)
    every = {"trainer.save_steps": chosen.save_steps}
    sessions = {
        f"{number} on {text}": (work / name, layout.keys(total, rows) | every | more)
        for number, (text, layout) in enumerate(zip(chosen.sessions, layouts, strict=True), 1)
    }
    if chosen.alone:
        none = {"trainer.save_steps": 0}
        sessions["alone"] = (work / "alone", Layout(1).keys(per_rank, rows) | none | more)
    found: dict[str, Any] = {"run_file": json.loads(run_file.read_text("utf-8")), "sessions": {}}
    asides: dict[str, Future[Any]] = {}

    def write(*, is_complete: bool) -> None:
        known = {key: each.result() for key, each in asides.items() if is_complete or each.done()}
        path = (chosen.output or work) / f"{name}.json"
        detail = found | known
        write_measurement(path, ratio(found), "of one GPU's rate", TARGET, detail, is_complete=is_complete)

    with ThreadPoolExecutor(1) as aside:
        asides["plans"] = aside.submit(
            plans, work / PLAN, {title: keys for title, (_, keys) in sessions.items()}
        )
        for title, (run_dir, keys) in sessions.items():
            is_first, is_own = not found["sessions"], run_dir.name == name
            if is_own and any(each["problem"] for each in found["sessions"].values()):
                continue
            saves, steps = chosen.saves if is_first else 0, chosen.steps + (0 if is_own else WARM)
            keys = {"trainer.output_dir": str(run_dir), **keys}
            receipt = checked(run_file, keys, run_dir.with_suffix(".checks"))
            done = session(run_file, run_dir, keys, *receipt, saves=saves, steps=steps, end_s=end_s)
            found["sessions"][title] = done
            done["losses"] = apart(done["rows"], next(iter(found["sessions"].values()))["rows"])
            if is_first and (kept := checkpoint_steps(run_dir / "checkpoints")):
                asides["reading"] = aside.submit(reading, run_dir / "checkpoints" / str(max(kept)))
            write(is_complete=False)
            print(line(title, done), flush=True)
    write(is_complete=True)
    print(json.dumps({key: each.result() for key, each in asides.items()}))
    if any(each["problem"] for each in found["sessions"].values()):
        sys.exit("not all sessions made their steps")


if __name__ == "__main__":
    main()
