"""Held-out loss of this trainer, for several seeds and numbers of steps in one process.

    python benchmarks/own_trainer.py WORK TRIALS.json --output FILE --config SECTIONS [--size 53M]

WORK holds what `passages.py` wrote. A trial is a seed and a number of steps; the recipe (`--config`), the
compiled step, the text and the evaluation (`held_out.py`) are the same for all. Seconds are those of the
training steps (`step_clock.py`), without compilation and evaluation.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import held_out
import torch
from model_sizes import SIZES
from peers.kernels import kernels_of, summary
from step_clock import UNTIMED, StepClock
from torch import Tensor, nn

from neobert.config import from_dict
from neobert.config.schema import RunConfig
from neobert.data.batches.windows import Cursor
from neobert.optim import build_optimizer, build_scheduler
from neobert.parallel import World
from neobert.training.guards.loss_guard import FiniteGuard
from neobert.training.loop.assembly import assemble, make_reproducible
from neobert.training.loop.hooks import collecting_between_steps
from neobert.training.loop.signals import Signals
from neobert.training.loop.steps import run_step
from neobert.training.state.train_state import LossWindow, Progress, TrainState
from neobert.training.state.trainer import Trainer

ROW_LENGTH = 512
KERNELS = "fused"
"""The fastest here; its packages are those of the extra `fused`."""
Sections = dict[str, dict[str, Any]]


def run_config(work: Path, size: str, rows: int, recipe: Sections, seed: int) -> RunConfig:
    """Configure a run of the recipe."""
    sections = base_sections(work, size, rows)
    for name, values in recipe.items():
        sections[name] = sections.get(name, {}) | values
    return from_dict(sections | {"seed": seed})


def shape_of(size: str) -> dict[str, Any]:
    """Return the keys of the model that its size determines."""
    layers, hidden = SIZES[size]
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
        "tie_word_embeddings": True,
    }


def base_sections(work: Path, size: str, rows: int) -> Sections:
    return {
        "model": {
            **shape_of(size),
            "max_position_embeddings": ROW_LENGTH,
            "kernel_backend": "torch" if size == "tiny" else KERNELS,
        },
        "tokenizer": {"path": str(work / "tokenizer"), "allow_special_token_rewrite": True},
        "dataset": {
            "path": str(work / "train.jsonl"),
            "cache_dir": str(work / "cache"),
            "max_seq_length": ROW_LENGTH,
            "num_workers": 2,
            "validation_split": None,
        },
        "trainer": {
            "output_dir": str(work / "run"),
            "max_steps": 100_000,
            "per_device_train_batch_size": rows,
            "torch_compile": size != "tiny",
            "mixed_precision": "no" if size == "tiny" else "bf16",
            "save_steps": 0,
            "eval_steps": 0,
        },
    }


def compiled(config: RunConfig, work: Path) -> Trainer:
    """Build the trainer, and do the steps that compile."""
    world = World.of(config)
    make_reproducible(config, world)
    run_dir = work / "run"
    run_dir.mkdir(exist_ok=True)
    trainer = assemble(config, run_dir, world, Signals(), None)
    for _ in range(UNTIMED):
        run_step(trainer)
    return trainer


def evaluation(work: Path, world: World) -> Callable[[nn.Module], dict[str, float]]:
    """Return what evaluates a model on the passages that are held out."""

    def evaluate(model: nn.Module) -> dict[str, float]:
        model.eval()

        def logits_of(ids: Tensor, mask: Tensor) -> Tensor:
            return model(input_ids=ids, attention_mask=mask).logits

        found = held_out.evaluate(logits_of, work / "passages.npz", world.device.type)
        model.train()
        return found

    return evaluate


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Copy initial weights in place: the compiled step keeps pointers to the weights."""
    torch.manual_seed(seed)
    drawn_anew = type(model)(copy.deepcopy(model.config))
    for weight, drawn in zip(model.parameters(), drawn_anew.parameters(), strict=True):
        weight.copy_(drawn)


def reset(trainer: Trainer, config: RunConfig, steps: int) -> None:
    """Reset a trainer with a compiled step to a fresh run."""
    trainer.batches.close()
    trainer.config = config
    object.__setattr__(trainer.task.batches.__self__, "config", config)
    initialize(trainer.task.model, config.seed)
    trainer.optimizer = build_optimizer(config.optimizer, trainer.task.model, trainer.task.backbone.layouts)
    trainer.scheduler = build_scheduler(trainer.optimizer, config.scheduler, steps)
    trainer.guard = FiniteGuard(
        trainer.world.device,
        trainer.run_dir / "nonfinite_rank0.json",
        config.trainer.logging_steps,
        limits=config.guard,
    )
    trainer.state = TrainState(progress=Progress(loss=LossWindow(trainer.world.device), cursor=Cursor()))
    trainer.batches = trainer.task.batches(trainer.progress.cursor)


def run(trainer: Trainer, steps: int, evaluate: Any) -> dict[str, Any]:
    """Train; return losses, tokens and seconds. As often as a run logs, it waits for the device as there."""
    curve, model, clock = [], trainer.task.model, StepClock(steps)
    with collecting_between_steps():
        for step in range(1, steps + 1):
            run_step(trainer)
            clock.ended(step)
            if step % trainer.config.trainer.logging_steps == 0:
                gc.collect()
                trainer.guard.check()
                curve.append(round(trainer.progress.loss.take(), 4))
    trainer.guard.check()
    return {
        "seconds": round(clock.seconds, 2),
        "tokens": trainer.progress.tokens_total,
        "train_losses": curve,
        **evaluate(model),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("trials", type=Path)
    parser.add_argument("--size", choices=list(SIZES), default="53M")
    parser.add_argument("--rows", type=int, default=128, help="of 512 tokens, in a step")
    parser.add_argument("--config", type=json.loads, required=True, help="sections of the recipe, as JSON")
    parser.add_argument(
        "--output", type=Path, required=True, help="file to append a line of JSON per trial to"
    )
    chosen = parser.parse_args()
    begun = time.perf_counter()
    work = chosen.work.resolve()
    trials = json.loads(chosen.trials.read_text())
    configs = [run_config(work, chosen.size, chosen.rows, chosen.config, trial["seed"]) for trial in trials]
    trainer = compiled(configs[0], work)
    kernels = summary(kernels_of(lambda: run_step(trainer)))
    evaluate = evaluation(work, trainer.world)
    print(f"compiled after {time.perf_counter() - begun:.0f} s", flush=True)
    for trial, config in zip(trials, configs, strict=True):
        reset(trainer, config, trial["steps"])
        found = run(trainer, trial["steps"], evaluate)
        same = {"size": chosen.size, "rows": chosen.rows, "config": chosen.config, "kernels": kernels}
        line = json.dumps({"trial": trial, **same, **found})
        with chosen.output.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        print(line, flush=True)
    trainer.batches.close()


if __name__ == "__main__":
    main()
