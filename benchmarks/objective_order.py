"""Causal steps in the training of an encoder, against masked words alone at equal tokens.

    python benchmarks/objective_order.py RUN_FILE WORK [--arms masked first interleaved --share 0.25]
        [--seeds 0 1 2] [--blimp FILE] [--output DIR]

RUN_FILE is a run of `task: pretrain` with `model.architecture: eurobert`, whose attention modules say whether
they are causal. In a causal step the same weights predict the next token of the unmasked text. `masked` has
none; `first` has them in the first SHARE of the steps (causal pretraining before masked words), `interleaved`
has them evenly spread, as GPT-BERT and AntLM mix both objectives. Optimizer, schedule, text and its order are
equal; a causal step has more targets. Reported: loss of masked words in the held-out text, and BLiMP by
`neobert-launch evaluate blimp`. The arms of a seed run at the same time, so their seconds say nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measurement import write_measurement

from neobert.config import from_dict, to_dict
from neobert.config.schema import RunConfig
from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.data.store.prepare import prepare
from neobert.export.folder import write_hf_folder
from neobert.parallel import World
from neobert.training.loop.assembly import assemble, make_reproducible
from neobert.training.loop.hooks import collecting_between_steps
from neobert.training.loop.signals import Signals
from neobert.training.loop.steps import evaluate, run_step
from neobert.training.loop.task import Batches
from neobert.training.state.trainer import Trainer
from profiles.registry import resolve_run

ARMS = ("masked", "first", "interleaved")
PRINTED_EVERY = 100


def is_causal_step(arm: str, step: int, num_steps: int, share: float) -> bool:
    if arm == "first":
        return step < share * num_steps
    return arm == "interleaved" and int((step + 1) * share) > int(step * share)


def causal(batch: Microbatch) -> Microbatch:
    """Return a masked microbatch as one of next tokens: the text without masks, labels shifted."""
    ids = torch.where(batch.labels == IGNORED, batch.input_ids, batch.labels)
    labels = torch.full_like(ids, IGNORED)
    is_next = batch.position_ids[1:] > 0
    is_next &= torch.arange(1, len(ids)) < batch.num_tokens
    labels[:-1] = torch.where(is_next, ids[1:], IGNORED)
    return replace(batch, input_ids=ids, labels=labels, num_targets=int(is_next.sum()))


class Alternating:
    """Batches of a trainer, causal in some steps; the attention modules follow."""

    def __init__(self, trainer: Trainer, arm: str, share: float) -> None:
        self.trainer, self.arm, self.share = trainer, arm, share
        self.batches: Batches = trainer.batches
        self.modules = [each for each in trainer.task.model.modules() if hasattr(each, "is_causal")]
        assert self.modules, "the model has no attention modules that say whether they are causal"
        self.num_causal = 0

    def __next__(self) -> Microbatch:
        batch: Microbatch = next(self.batches)
        is_causal = is_causal_step(self.arm, self.trainer.progress.step, self.trainer.max_steps, self.share)
        self.attend(is_causal=is_causal)
        self.num_causal += is_causal
        return causal(batch) if is_causal else batch

    def attend(self, *, is_causal: bool) -> None:
        for module in self.modules:
            module.is_causal = is_causal

    def close(self) -> None:
        self.batches.close()


def train(config: RunConfig, work: Path, arm: str, share: float) -> dict[str, Any]:
    """Train an arm and write its folder; return its evaluation."""
    world = World.of(config)
    make_reproducible(config, world)
    work.mkdir(parents=True, exist_ok=True)
    trainer = assemble(config, work, world, Signals(), None)
    batches = trainer.batches = Alternating(trainer, arm, share)
    with collecting_between_steps():
        while trainer.progress.step < trainer.max_steps:
            run_step(trainer)
            if trainer.progress.step % PRINTED_EVERY == 0:
                trainer.guard.check()
                print(arm, config.seed, trainer.progress.step, trainer.progress.loss.take(), file=sys.stderr)
    trainer.guard.check()
    batches.attend(is_causal=False)
    found = evaluate(trainer)
    batches.close()
    write_hf_folder(trainer.task.model, trainer.task.tokenizer_files, work / "model")
    return {
        "loss": found["eval/loss"],
        "tokens": trainer.progress.tokens_total,
        "causal_microbatches": batches.num_causal,
        "attention_kernel": trainer.task.backbone.attention,
    }


def blimp(folder: Path, data: Path, pairs: int) -> float:
    """Return the mean accuracy over the paradigms."""
    output = folder.parent / "blimp"
    command = [sys.executable, "-m", "launcher", "evaluate", "blimp", str(folder), "--data", str(data)]
    command += ["-o", str(output), "--pairs-per-paradigm", str(pairs)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    report = json.loads((output / "blimp.json").read_text(encoding="utf-8"))
    return float(report["summary"]["figures"][0]["value"])


def child(chosen: argparse.Namespace) -> None:
    config = from_dict(json.loads(Path(chosen.child).read_text(encoding="utf-8")))
    found = train(config, Path(config.trainer.output_dir), chosen.arms[0], chosen.share)
    if chosen.blimp:
        folder = Path(config.trainer.output_dir) / "model"
        found["blimp"] = blimp(folder, chosen.blimp, chosen.pairs)
    print(json.dumps(found))


def seed_of_arms(chosen: argparse.Namespace, config: RunConfig, seed: int) -> dict[str, dict[str, Any]]:
    """Train the arms of a seed at the same time."""
    children = {}
    for arm in chosen.arms:
        folder = chosen.work / f"{arm}-{seed}"
        trainer = replace(config.trainer, output_dir=str(folder))
        path = chosen.work / f"{arm}-{seed}.json"
        path.write_text(json.dumps(to_dict(replace(config, seed=seed, trainer=trainer))), encoding="utf-8")
        command = [sys.executable, __file__, str(chosen.run_file), str(chosen.work), "--child", str(path)]
        command += ["--arms", arm, "--share", str(chosen.share), "--pairs", str(chosen.pairs)]
        command += ["--blimp", str(chosen.blimp)] if chosen.blimp else []
        with path.with_suffix(".log").open("w") as log:
            children[arm] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    found = {}
    for arm, process in children.items():
        output, _ = process.communicate()
        if process.returncode:
            print(f"{arm}, seed {seed}: {(chosen.work / f'{arm}-{seed}.log').read_text()[-800:]}")
            continue
        found[arm] = json.loads(output.splitlines()[-1])
        print(f"seed {seed} {arm:12} {found[arm]}", flush=True)
    return found


def differences(seeds: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return what each arm gains over masked words alone, in pairs of the same seed."""
    found: dict[str, Any] = {}
    for arm in ARMS[1:]:
        for name in ("loss", "blimp"):
            pairs = [
                arms[arm][name] - arms["masked"][name]
                for arms in seeds.values()
                if arm in arms and "masked" in arms and name in arms[arm]
            ]
            if pairs:
                spread = statistics.stdev(pairs) if len(pairs) > 1 else None
                found[f"{arm}, {name}"] = {"mean": statistics.fmean(pairs), "std": spread, "pairs": pairs}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run_file", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--share", type=float, default=0.25, help="of causal steps")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--blimp", type=Path, help="blimp.jsonl.gz")
    parser.add_argument("--pairs", type=int, default=200, help="of each paradigm")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(chosen)
        return
    chosen.work = chosen.work.resolve()
    chosen.work.mkdir(parents=True, exist_ok=True)
    config = resolve_run(None, [chosen.run_file], []).config
    prepare(config)
    seeds: dict[int, dict[str, Any]] = {}
    about = {"run_file": chosen.run_file.read_text(), "share": chosen.share, "pairs": chosen.pairs}
    for seed in chosen.seeds:
        seeds[seed] = seed_of_arms(chosen, config, seed)
        gained = differences(seeds)
        if chosen.output:
            value = gained.get("first, loss", {}).get("mean")
            path = chosen.output / "objective-order.json"
            detail = about | {"seeds": seeds, "differences": gained}
            is_complete = seed == chosen.seeds[-1]
            write_measurement(path, value, "nats, first - masked", None, detail, is_complete=is_complete)
    for name, each in gained.items():
        print(f"{name:20} {each['mean']:+.4f} (std {each['std'] or 0:.4f}) against masked words alone")


if __name__ == "__main__":
    main()
