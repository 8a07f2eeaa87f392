"""Save whole on 1 and 2 ranks, and in parts on 2 to 4; load every checkpoint in each of these ways.

Four ranks hold two replicas of two shards.

python -m tests.faults.pairs_of_ranks FOLDER

Prints a JSON list: what differs from the state at the save, for each pair.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from neobert.config import from_dict
from neobert.errors import ProjectError
from neobert.export import lazy_weights
from neobert.export.weights import read_weights, unique_weights
from neobert.parallel import World, full_tensor
from neobert.parallel.sharding import local_shard, own_row_slices
from neobert.rehearsal.answers import all_answers
from neobert.rehearsal.trials import WorstCase
from neobert.runfiles.checkpoint.state import read_state
from neobert.training.checkpoint import restore as restore_module
from neobert.training.checkpoint import save as save_module
from neobert.training.checkpoint.save import Saver
from neobert.training.checkpoint.tensors import optimizer_tensors
from neobert.training.loop.assembly import StartCheckpoint, assemble, start_world
from neobert.training.loop.signals import Signals
from neobert.training.loop.steps import evaluate, run_step
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.guess_log import GuessLog
from tests.faults import nursery
from tests.parallel.gathers import LargestMessage
from tests.training.conftest import write_corpus, write_run

MICROBATCHES = 12  # a multiple of each number of ranks
WAYS = [(1, "replicated"), (2, "replicated"), (2, "fsdp2"), (3, "fsdp2"), (4, "fsdp2")]
STEP = 2
FILE_BYTES = 4096


def main(folder: Path) -> None:
    corpus = write_corpus(folder)
    for ranks, mode in WAYS:
        sharing = {"nproc_per_node": ranks, "mode": mode, "reshard_after_forward": mode == "fsdp2"}
        sharing["replicas"] = 2 if (ranks, mode) == (4, "fsdp2") else 1
        sizes = {"gradient_accumulation_steps": MICROBATCHES // ranks, "per_device_train_batch_size": 1}
        write_run(folder / name_of(ranks, mode), corpus, {"trainer": sizes, "distributed": sharing})
    for way in WAYS:
        together(way[0], partial(save, folder, way))
    for way in WAYS:
        together(way[0], partial(load_all, folder, way))
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("found-*"))]
    print(json.dumps({name: each for one in found for name, each in one.items()}))


def name_of(ranks: int, mode: str) -> str:
    return f"{mode} on {ranks}"


def together(ranks: int, run: Callable[[], None]) -> None:
    """Run a function on each of several ranks, in processes of their own. Raises if one fails."""
    port, pids = nursery.free_port(), []
    for rank in range(ranks):
        if not (pid := os.fork()):
            world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            os.environ |= {name: str(value) for name, value in world.items()} if ranks > 1 else {}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
            code = 1
            try:
                run()
                code = 0
            except BaseException as error:
                print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                raise
            finally:
                os._exit(code)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert not any(codes), codes


def trainer_of(folder: Path, way: tuple[int, str], start: Path | None = None) -> Trainer:
    run_dir = folder / name_of(*way)
    config = from_dict(json.loads((run_dir / "resolved.json").read_text()))
    world = start_world(config)
    found = None if start is None else StartCheckpoint(start, read_state(start, STEP))
    return assemble(config, run_dir, world, Signals(), found)


def save(folder: Path, way: tuple[int, str]) -> None:
    """Train, save and rehearse, with files of a few kilobytes; rank 0 writes what came of it."""
    lazy_weights.FILE_BYTES = FILE_BYTES
    with LargestMessage() as messages, mock.patch.object(DTensor, "full_tensor", refuse):
        trainer = trainer_of(folder, way)
        for _ in range(STEP):
            run_step(trainer)
        saver = Saver(trainer, lambda: None)
        saver.finish(trainer, is_complete=True)
        evaluate(trainer)
        saver.close()
    truth = {name: full_tensor(each.detach()).clone() for name, each in state_of(trainer).items()}
    if trainer.world.is_main:
        torch.save(truth, folder / f"{name_of(*way)}.pt")
        units = [sum(each.numel() for each in unit.parameters()) for unit in trainer.task.objective.units()]
        checkpoint = trainer.checkpoints / str(STEP)
        for name, each in read_weights(checkpoint).items():
            assert torch.equal(each, truth[name]), name
        files = sorted(path.name for path in checkpoint.glob("*.safetensors"))
        report = {"largest": messages.largest, "unit": max(units), "files": files}
    with messages, mock.patch.object(DTensor, "full_tensor", refuse):
        GuessLog(trainer).add(trainer)
        worst = WorstCase(trainer)
        worst.run(trainer)
        answers = [answer._asdict() for answer in all_answers(trainer, worst.train)]
    planted = largest_of_phases(folder, way, trainer) if way == (2, "fsdp2") else None
    refusal = flipped(trainer) if trainer.world.num_shards == 2 < trainer.world.size else None
    if trainer.world.is_main:
        report |= {"rehearsed": messages.largest, "answers": answers}
        report |= {"planted": planted, "flipped": refusal}
        (folder / f"found-{name_of(*way)}").write_text(json.dumps({f"saved {name_of(*way)}": report}))
    trainer.batches.close()
    trainer.world.wait_for_all()


def largest_of_phases(folder: Path, way: tuple[int, str], trainer: Trainer) -> dict[str, int]:
    """Gather as much as the whole model once in each phase of a session, and return its largest message."""
    share = sum(each.numel() for each in trainer.module.parameters()) // trainer.world.size

    def gathering(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            dist.all_gather([torch.zeros(share) for _ in range(trainer.world.size)], torch.zeros(share))
            return real(*arguments, **named)

        return call

    def save_again() -> None:
        saver = Saver(trainer, lambda: None)
        saver.begin(trainer)
        saver.close()

    checkpoint, found = trainer.checkpoints / str(STEP), {}
    for phase, (owner, name, run) in {
        "start": (World, "prepare", partial(trainer_of, folder, way)),
        "step": (World, "gradient_norm", partial(run_step, trainer)),
        "evaluation": (World, "evaluation_context", partial(evaluate, trainer)),
        "save": (save_module, "write_parts", save_again),  # in the thread that writes
        "resume": (restore_module, "load_optimizer", partial(trainer_of, folder, way, checkpoint)),
    }.items():
        with mock.patch.object(owner, name, gathering(getattr(owner, name))), LargestMessage() as messages:
            started = run()
        found[phase] = messages.largest
        if isinstance(started, Trainer):
            started.batches.close()
    return found


def flipped(trainer: Trainer) -> str:
    """Flip a bit of one shard on the last rank, which has it in common with another one, and save."""
    if trainer.world.rank == trainer.world.size - 1:
        with torch.no_grad():
            local_shard(next(trainer.module.parameters())).view(torch.int32).view(-1)[0] ^= 1
    with pytest.raises(ProjectError, match="DST005") as refused:
        Saver(trainer, lambda: None).begin(trainer)
    return refused.value.message.partition(", and")[0]


def load_all(folder: Path, way: tuple[int, str]) -> None:
    """Load every checkpoint, and compare this rank's rows with what was saved."""
    found = {}
    for saved in WAYS:
        checkpoint = folder / name_of(*saved) / "checkpoints" / str(STEP)
        with LargestMessage() as messages, mock.patch.object(DTensor, "full_tensor", refuse):
            trainer = trainer_of(folder, way, checkpoint)
        truth = torch.load(folder / f"{name_of(*saved)}.pt")
        own = state_of(trainer)
        wrong = sorted(own.keys() ^ truth.keys())
        wrong += [
            name
            for name, each in own.items()
            if not torch.equal(local_shard(each), truth[name][own_row_slices(each)])
        ]
        everywhere = trainer.world.sum_over_ranks([len(wrong), messages.largest])
        found[f"{name_of(*saved)}, then {name_of(*way)}"] = everywhere
        trainer.batches.close()
    if trainer.world.is_main:
        (folder / f"found-then-{name_of(*way)}").write_text(json.dumps(found))
    trainer.world.wait_for_all()


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    """Return weights and optimizer state by name, sharded if they are."""
    weights = unique_weights(trainer.task.model)
    return weights | optimizer_tensors(trainer.task.model, trainer.optimizer)


def refuse(tensor: DTensor) -> Tensor:
    raise AssertionError(f"a tensor of shape {tuple(tensor.shape)} was gathered")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
