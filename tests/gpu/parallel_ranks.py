"""One rank of a short run on a GPU: `parallel_ranks.py RUN_DIR`. Rank 0 writes what came of it."""

import json
import sys
import warnings
from pathlib import Path

import torch

from neobert.config import from_dict
from neobert.parallel import World, full_tensor
from neobert.train import exit_process
from neobert.training.guards.replicas import compare_replicas
from neobert.training.loop.assembly import assemble, make_reproducible
from neobert.training.loop.signals import Signals
from neobert.training.loop.steps import evaluate, run_step

WARM_UP, STEPS = 3, 8


def run(run_dir: Path) -> None:
    config = from_dict(json.loads((run_dir / "resolved.json").read_text()))
    world = World.from_config(config)
    make_reproducible(config, world)
    trainer = assemble(config, run_dir, world, Signals(), None)
    counters, losses = torch._dynamo.utils.counters, []
    try:
        evaluate(trainer)
        for _ in range(WARM_UP):
            run_step(trainer)
            losses.append(trainer.progress.loss.take())
        graphs = counters["stats"]["unique_graphs"]
        for _ in range(STEPS):
            torch.cuda.set_sync_debug_mode("error")
            run_step(trainer)
            torch.cuda.set_sync_debug_mode("default")
            losses.append(trainer.progress.loss.take())
        evaluated = evaluate(trainer)
        trainer.guard.check_weights(trainer.task.model, WARM_UP + STEPS)
        compare_replicas(trainer)
    finally:
        trainer.batches.close()
    state = {name: full_tensor(each) for name, each in trainer.task.model.state_dict().items()}
    report = {
        "losses": losses,
        "grad_norm": float(trainer.state.grad_norm),
        "eval_loss": evaluated["eval/loss"],
        "graph_breaks": dict(counters["graph_break"]),
        "compiled_late": counters["stats"]["unique_graphs"] - graphs,
        "num_weights": sum(each.numel() for each in state.values()),
        "dtypes": sorted({str(each.dtype) for each in state.values()}),
    }
    if world.is_main:
        (run_dir / "seen.json").write_text(json.dumps(report))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run(Path(sys.argv[1]))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    exit_process(0)
