"""One rank of models that are built without memory for their weights: `meta_ranks.py FOLDER [bf16]`.

Rank 0 writes what came of each model in `DECODERS` that `MODELS` names, and of a start from its files; with
`bf16`, of blocks that are gathered as they are, and in bf16.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from neobert.config.schema import RunConfig
from neobert.families.table import model_shape
from neobert.objectives import TokenObjective
from neobert.objectives.compile import compile_encoder
from neobert.optim import build_optimizer, step_unless
from neobert.parallel import World, full_tensor
from neobert.precision.recipe import BF16, FP32
from neobert.probes.attention import attention_answers, draw_weights
from neobert.probes.attention_suite import random_full_microbatch
from neobert.probes.probed_model import probed_model
from neobert.tasks.rank_data import objective_inputs
from neobert.train import exit_process
from neobert.training.loop import steps
from neobert.training.telemetry.stopwatch import Stopwatch
from tests.families.test_decoders import LENGTHS, ROWS, build, config_of, packed
from tests.parallel.gathers import LargestMessage

MODELS = ("llama", "qwen2", "gemma2")  # untied; tied with biases; four norms in a block
NUM_RANKS = 3  # rows of no matrix here are a multiple of it
STEPS, PER_STEP = 2, 6


def start(
    world: World,
    architecture: str,
    folder: Path,
    files: Path | None = None,
    *,
    in_one_piece: bool = False,
    gathers_copies: bool = False,
) -> dict[str, Any]:
    """Build, prepare and train a model; return its weights before and after, its losses and messages."""
    folder.mkdir(exist_ok=True)
    noted = LargestMessage()
    with noting(noted, world):
        with world.defer_weights() as weights:
            backbone = build(architecture, folder, world)
            if files is not None:
                backbone.load(files)
        objective = TokenObjective(backbone, targets_only=True)
        module = world.prepare(
            objective,
            overlaps_exchange=not in_one_piece,
            reshards=True,
            gathers_copies=gathers_copies,
            weights=weights,
        )
    begun = whole(objective.model)
    units = [sum(each.numel() for each in unit.parameters()) for unit in objective.units()]
    largest_unit = max(*units, sum(each.numel() for each in objective.parameters()) - sum(units))
    trainer: Any = SimpleNamespace(
        world=world,
        module=module,
        task=SimpleNamespace(objective=objective, inputs=lambda batch, _: batch),
        stopwatch=Stopwatch(world.device),
    )
    config = config_of(architecture, folder)
    optimizer = build_optimizer(config.optimizer, objective.model)
    losses = []
    for step in range(STEPS):
        row = packed()
        numbers = [number for number in range(PER_STEP) if number % world.size == world.rank]
        batches = [
            row | {"labels": row["input_ids"].roll(number + step), "num_targets": sum(LENGTHS)}
            for number in numbers
        ]
        with noting(noted, world):
            losses.append(steps.accumulate(trainer, batches, PER_STEP * sum(LENGTHS)).item())
            norm = world.gradient_norm(module).item()
            step_unless(torch.tensor(False), optimizer)
        optimizer.zero_grad(set_to_none=True)
    ended = whole(objective.model)
    answers = []
    if files is None and not in_one_piece:  # a probe draws the weights itself, however they began
        with noting(noted, world):
            answers = answers_of(world, config, objective, module)
    held = sum(each.to_local().numel() if world.size > 1 else each.numel() for each in module.parameters())
    return {
        "begun": begun,
        "ended": ended,
        "losses": losses,
        "norm": norm,
        "buffers": {name: each.clone() for name, each in objective.model.named_buffers()},
        "ties": [name for name, _ in objective.model.named_parameters()],
        "generator": torch.get_rng_state(),
        "largest": (noted.largest, largest_unit),
        "held": held,
        "answers": answers,
    }


def noting(noted: LargestMessage, world: World) -> AbstractContextManager[object]:
    """Look at each operation where ranks gather whole parts: that takes as long as the operations."""
    return noted if world.size == NUM_RANKS else nullcontext()


def answers_of(
    world: World, config: RunConfig, objective: TokenObjective, module: Any
) -> list[tuple[str, float]]:
    """Probe attention as a rehearsal does, with weights of its own."""
    backbone, batch = objective.backbone, random_full_microbatch(config, ROWS)
    draw_weights(backbone.model)
    probed = probed_model(backbone, objective, world, objective_inputs, model_shape(config, ROWS).attention)
    with world.gather_parameters_outside_blocks(module, backbone.ends):
        return [(each.kind, each.value) for each in attention_answers(probed, batch)]


def whole(model: Any) -> dict[str, Tensor]:
    return {name: full_tensor(each.detach()).clone() for name, each in model.state_dict().items()}


def in_fp32(folder: Path) -> tuple[World, dict[Any, Any]]:
    world, found = World(FP32, "fsdp2"), {}
    for name in MODELS:
        files, own = folder.parent / f"{name}-files", folder / f"{name}-{world.rank}"
        found[name] = start(world, name, own)
        found[f"{name} from files"] = start(world, name, own, files)
    if world.size > 1:
        name = MODELS[0]
        own = folder / f"{name}-{world.rank}"
        found[f"{name} in one piece"] = start(world, name, own, in_one_piece=True)
    return world, found


def in_bf16(folder: Path) -> tuple[World, dict[Any, Any]]:
    world, found = World(BF16, "fsdp2"), {}
    for name, is_low in product(MODELS, (False, True)):
        one = start(world, name, folder / f"{name}-{world.rank}", gathers_copies=is_low)
        found[name, is_low] = {key: one[key] for key in ("losses", "norm", "answers")}
    found["padded"] = [
        padded(world, folder / f"padded-{world.rank}", *each) for each in product((False, True), repeat=2)
    ]
    return world, found


def padded(world: World, folder: Path, is_low: bool, is_compiled: bool) -> tuple[float, float]:
    """Return loss and gradient norm of a padded row; each compiled block must be one graph."""
    folder.mkdir(exist_ok=True)
    with world.defer_weights() as weights:
        backbone = build(MODELS[0], folder, world)
    if is_compiled:
        compile_encoder(backbone, "eager", is_alone=False)
    objective = TokenObjective(backbone, targets_only=True)
    module = world.prepare(objective, reshards=True, gathers_copies=is_low, weights=weights)
    ids = packed()["input_ids"][None]
    rows = {"position_ids": torch.arange(ids.numel())[None], "attention_mask": torch.ones_like(ids)}
    with world.autocast():
        loss = module(ids.numel(), ids, input_ids=ids, **rows)
    loss.backward()
    return loss.item(), world.gradient_norm(module).item()


def main(folder: Path, *more: str) -> None:
    torch.set_num_threads(1)
    world, found = (in_bf16 if more else in_fp32)(folder)
    if world.is_main:
        torch.save(found, folder / "found.pt")
    world.wait_for_all()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    exit_process(0)
