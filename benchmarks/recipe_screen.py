"""Held-out loss of many recipes, one after another in one process, at equal tokens.

    python benchmarks/recipe_screen.py WORK TRIALS.json --output FILE [--size 53M]

WORK holds what `passages.py` wrote. A trial sets the keys that differ from BASE; the compiled step (`--rows`,
`--config`), the text and the tokens per step are the same for all, and so is the evaluation (`held_out.py`).
Seconds are those of the training steps (`step_clock.py`), without compilation and evaluation.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
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
from neobert.errors import ProjectError
from neobert.optim import build_optimizer, build_scheduler
from neobert.parallel import World
from neobert.training.guards.loss_guard import CODE, SPIKE_CODE, FiniteGuard
from neobert.training.loop.assembly import assemble, make_reproducible
from neobert.training.loop.hooks import collecting_between_steps
from neobert.training.loop.signals import Signals
from neobert.training.loop.steps import run_step
from neobert.training.state.train_state import LossWindow, Progress, TrainState
from neobert.training.state.trainer import Trainer

ROW_LENGTH = 512
KERNELS = "fused"
"""The fastest here; its packages are those of the extra `fused`."""
DIVERGED = (CODE, SPIKE_CODE)
BASE: dict[str, Any] = {
    "steps": 600,
    "init": "published",
    "optimizer": "adamw",
    "lr": 1e-3,
    "muon_lr": None,
    "betas": (0.9, 0.98),
    "weight_decay": 0.01,
    "warmup": 0.1,
    "decay": 1.0,
    "shape": "cosine",
    "floor": 0.0,
    "clip": 1.0,
    "momentum": 0.95,
    "split": "projections",
    "mask_all": False,
    "seed": 0,
}
Sections = dict[str, dict[str, Any]]


def run_config(work: Path, size: str, rows: int, trial: dict[str, Any], fixed: Sections) -> RunConfig:
    """Configure the base run; `reset` applies the changes of a trial."""
    sections = base_sections(work, size, rows, trial)
    for name, values in fixed.items():
        sections[name] = sections.get(name, {}) | values
    return from_dict(sections | {"seed": trial["seed"]})


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


def base_sections(work: Path, size: str, rows: int, trial: dict[str, Any]) -> Sections:
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
        "datacollator": {
            "mlm_probability": 0.2,
            "mask_all": trial["mask_all"],
        },
        "optimizer": optimizer_section(trial),
        "scheduler": {
            "name": trial["shape"],
            "warmup_percent": 100 * trial["warmup"],
            "decay_percent": None if trial["decay"] == 1.0 else 100 * trial["decay"],
            "final_lr_ratio": trial["floor"],
        },
        "trainer": {
            "output_dir": str(work / "run"),
            "max_steps": 100_000,
            "per_device_train_batch_size": rows,
            "torch_compile": size != "tiny",
            "mixed_precision": "no" if size == "tiny" else "bf16",
            "gradient_clipping": trial["clip"],
            "save_steps": 0,
            "eval_steps": 0,
        },
    }


def optimizer_section(trial: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": trial["optimizer"],
        "lr": trial["lr"],
        "muon_lr": trial["muon_lr"],
        "betas": list(trial["betas"]),
        "weight_decay": trial["weight_decay"],
        "muon_momentum": trial["momentum"],
        "muon_split": trial["split"],
    }


def compiled(config: RunConfig, work: Path) -> Trainer:
    """Build the trainer of the base run, and do the steps that compile."""
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
def initialize(model: nn.Module, trial: dict[str, Any]) -> None:
    """Copy the initial weights of `model.init` in place: the compiled step keeps pointers to the weights."""
    config = copy.deepcopy(model.config)
    config.init = trial["init"]
    torch.manual_seed(trial["seed"])
    for weight, drawn in zip(model.parameters(), type(model)(config).parameters(), strict=True):
        weight.copy_(drawn)


def reset(trainer: Trainer, config: RunConfig, trial: dict[str, Any]) -> None:
    """Reset a trainer with a compiled step to a fresh run."""
    trainer.batches.close()
    trainer.config = config
    object.__setattr__(trainer.task.batches.__self__, "config", config)
    initialize(trainer.task.model, trial)
    trainer.module.zero_grad(set_to_none=True)  # a run that diverged leaves the gradient of its last step
    trainer.optimizer = build_optimizer(config.optimizer, trainer.task.model, trainer.task.backbone.layouts)
    trainer.scheduler = build_scheduler(trainer.optimizer, config.scheduler, trial["steps"])
    trainer.guard = FiniteGuard(
        trainer.world.device,
        trainer.run_dir / "nonfinite_rank0.json",
        config.trainer.logging_steps,
        limits=config.guard,
    )
    trainer.state = TrainState(progress=Progress(loss=LossWindow(trainer.world.device), cursor=Cursor()))
    trainer.batches = trainer.task.batches(trainer.progress.cursor)


def run(trainer: Trainer, trial: dict[str, Any], evaluate: Any) -> dict[str, Any]:
    """Train; return losses, tokens and seconds. As often as a run logs, it waits for the device as there."""
    curve, model, clock = [], trainer.task.model, StepClock(trial["steps"])
    with collecting_between_steps():
        for step in range(1, trial["steps"] + 1):
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
    parser.add_argument("--until", type=float, default=math.inf, help="Unix time; start no trial after it")
    parser.add_argument("--config", type=json.loads, default={}, help="sections of all trials, as JSON")
    parser.add_argument(
        "--output", type=Path, required=True, help="file to append a line of JSON per trial to"
    )
    chosen = parser.parse_args()
    begun = time.perf_counter()
    work = chosen.work.resolve()
    trials = [{**BASE, **trial} for trial in json.loads(chosen.trials.read_text())]
    if unknown := {name for trial in trials for name in trial} - BASE.keys():
        parser.error(f"trials set {', '.join(sorted(unknown))}; known are {', '.join(BASE)}")
    configs = [
        run_config(chosen.work.resolve(), chosen.size, chosen.rows, trial, chosen.config) for trial in trials
    ]
    trainer = compiled(configs[0], work)
    kernels = summary(kernels_of(lambda: run_step(trainer)))
    evaluate = evaluation(work, trainer.world)
    print(f"compiled after {time.perf_counter() - begun:.0f} s", flush=True)
    for index, (trial, config) in enumerate(zip(trials, configs, strict=True)):
        if time.time() > chosen.until:
            print(f"{len(trials) - index} trials not run")
            break
        reset(trainer, config, trial)
        try:
            found = run(trainer, trial, evaluate)
        except ProjectError as error:
            if error.code not in DIVERGED:
                raise
            found = {"error": error.message}  # the next recipe starts afresh
        differing = {name: trial[name] for name in trial if trial[name] != BASE.get(name)}
        line = {
            "size": chosen.size,
            "rows": chosen.rows,
            "config": chosen.config,
            "trial": differing,
            "kernels": kernels,
            **found,
        }
        with chosen.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
    trainer.batches.close()


if __name__ == "__main__":
    main()
