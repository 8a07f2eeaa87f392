"""Pretraining for a wall time: this trainer on its recipe, or `transformers.Trainer` with a ModernBERT.

    python benchmarks/timed_pretraining.py ours|peer WORK MODELS --seconds 300 --output FILE

WORK holds what `passages.py` wrote. Some steps at the same shapes tell how many fit into
the time; then training starts again with that many, so that warm-up and decay span it. The time is that of
the steps: start, compilation and evaluation are outside on both sides. Two sides that share WORK take turns
(`recipe_screen.turn`): one of them compiles while the other trains. Leaves MODELS/ours, and MODELS/random
with its weights before the first step, or MODELS/peer: folders that transformers loads.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import peer_trainer
from model_sizes import SIZES
from peers.kernels import kernels_of, summary
from recipe_screen import BASE, compiled, evaluation, reset, run, run_config, turn
from step_clock import UNTIMED
from transformers import BertTokenizer, ModernBertForMaskedLM
from trials import CONFIG, RECIPE, ROWS, SHARE

from neobert.export.weights import own_weights
from neobert.model import NeoBERTConfig
from neobert.training.loop.steps import run_step
from neobert.training.loop.task import Task

PEER_RECIPE = {"lr": 1e-3, "share": SHARE}
"""The best of a screen on this text (docs/learning.md)."""


def ours(chosen: argparse.Namespace) -> dict[str, Any]:
    """Pretrain with this trainer, and keep its weights before and after."""
    trial = {**BASE, **RECIPE, "seed": chosen.seed, "steps": chosen.pace_steps}
    config = run_config(chosen.work, chosen.size, chosen.rows, trial, CONFIG)
    trainer = compiled(config, chosen.work)
    kernels = summary(kernels_of(lambda: run_step(trainer)))
    with turn(chosen.work):
        pace = run(trainer, trial, lambda _: {})
        trial["steps"] = steps_within(chosen.seconds, pace["seconds"] / chosen.pace_steps)
        reset(trainer, config, trial)
        keep(trainer.task, chosen.models / "random")
        found = run(trainer, trial, evaluation(chosen.work, trainer.world))
    keep(trainer.task, chosen.models / "ours")
    trainer.batches.close()
    parameters = sum(each.numel() for each in trainer.task.model.parameters())
    made_of = {"recipe": RECIPE, "config": CONFIG, "kernels": kernels}
    return {"steps": trial["steps"], "parameters": parameters, **made_of, **found}


def keep(task: Task, folder: Path) -> None:
    """Write a folder that transformers loads. Its classifier pools by the mean."""
    task.model.config.pooling = "avg"
    folder.mkdir(parents=True, exist_ok=True)
    task.save(folder, own_weights(task.model))


def peer(chosen: argparse.Namespace) -> dict[str, Any]:
    """Pretrain ModernBERT, and keep its weights. A few steps fill the compiler's cache before its turn."""
    recipe = {**peer_trainer.BASE, **PEER_RECIPE, "seed": chosen.seed, "steps": chosen.pace_steps}
    side = peer_trainer.compiled(chosen.work, chosen.size, chosen.rows)
    with turn(chosen.work):
        pace = side.train(recipe)
        recipe["steps"] = steps_within(chosen.seconds, pace["seconds"] / chosen.pace_steps)
        found = {**side.train(recipe), **side.evaluate()}
    keep_peer(side.model, chosen.work / "tokenizer", chosen.models / "peer")
    return found


def keep_peer(model: ModernBertForMaskedLM, tokenizer: Path, folder: Path) -> None:
    """Write the same of ModernBERT. Its classifier drops as many inputs as ours: by default it drops none."""
    model.config.sparse_prediction = False
    model.config.classifier_pooling = "mean"
    model.config.classifier_dropout = NeoBERTConfig().classifier_dropout
    model.save_pretrained(folder)
    BertTokenizer.from_pretrained(tokenizer).save_pretrained(folder)


def steps_within(seconds: float, pace_s: float) -> int:
    return max(UNTIMED + 1, round(seconds / pace_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("side", choices=["ours", "peer"])
    parser.add_argument("work", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--size", choices=list(SIZES), default="53M")
    parser.add_argument("--rows", type=int, default=ROWS["53M"], help="of 512 tokens, in a step")
    parser.add_argument("--pace-steps", type=int, default=200, help="that tell the pace")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.work, chosen.models = chosen.work.resolve(), chosen.models.resolve()
    line = {"asked_seconds": chosen.seconds, **(ours if chosen.side == "ours" else peer)(chosen)}
    with chosen.output.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
