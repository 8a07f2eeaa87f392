"""One rank of runs in small, on a CPU: `ranks.py FOLDER OPTIONS`. Rank 0 writes what came of each.

OPTIONS is a JSON list, one mapping a run.

The microbatches of a step are the same whatever the number of ranks: number i goes to rank i mod ranks, and
`accumulation` of them to each. Their targets are unequally many, and one has none.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from neobert.config import from_dict
from neobert.families.neobert.build import backbone_from_model
from neobert.kernels import reference
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.objectives import StepKernels, TokenObjective, packed_encoder
from neobert.objectives.compile import compile_encoder
from neobert.objectives.packed_encoder import KernelObjective
from neobert.optim import build_optimizer, step_unless
from neobert.parallel import World, full_tensor
from neobert.precision.recipe import FP32
from neobert.tasks.contrastive.loss import InfoNCELoss
from neobert.tasks.contrastive.step import ContrastiveStep
from neobert.tasks.rank_data import objective_inputs
from neobert.train import exit_process
from neobert.training.guards.loss_guard import FiniteGuard
from neobert.training.loop import steps
from neobert.training.state.train_state import TrainState
from neobert.training.telemetry.stopwatch import Stopwatch
from tests.tasks.contrastive_steps import TEMPERATURE, batch_of, embedder

VOCAB, STEPS, HEADS, PER_STEP = 61, 3, 2, 4
LENGTHS, CHANCES = (7, 1, 5, 11), (0.6, 0.1, 0.4, 0.0)


@dataclass(frozen=True)
class Options:
    mode: str = "replicated"
    replicas: int = 1
    reshards: bool = False
    kernels: str = "torch"
    tied: bool = False
    recompute: bool = False
    padded: bool = False
    behind: bool = False
    backend: str = ""
    fault: str = ""
    pairs: bool = False


@dataclass
class Sent(TorchDispatchMode):
    """Counts what goes from rank to rank."""

    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            self.calls.append(function.name())
        return function(*args, **(kwargs or {}))


def build_model(options: Options) -> NeoBERTLMHead:
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": HEADS, "intermediate_size": 48}
    config = NeoBERTConfig(
        vocab_size=VOCAB,
        tie_word_embeddings=options.tied,
        embedding_init_range=0.5,
        decoder_init_range=0.1,
        **shape,
    )
    model = NeoBERTLMHead(config)
    if options.recompute:
        model.enable_gradient_checkpointing(2)
    return model


def build_objective(options: Options) -> TokenObjective:
    model = build_model(options)
    if options.kernels == "torch":
        return TokenObjective(backbone_from_model(model), True)
    return KernelObjective(
        backbone_from_model(model), StepKernels(options.kernels, "triton_packed", "sdpa", ""), sum(LENGTHS)
    )


def microbatch(number: int, padded: bool) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(number)
    total = sum(LENGTHS)
    ids = torch.randint(1, VOCAB, (total,), generator=draw)
    is_target = torch.rand(total, generator=draw) < CHANCES[number % PER_STEP]
    batch = {
        "num_targets": int(is_target.sum()),
        "labels": torch.where(is_target, ids, -100),
        "input_ids": ids,
    }
    if padded:
        return {**batch, **{name: batch[name].view(4, 6) for name in ("labels", "input_ids")}}
    return {
        **batch,
        "position_ids": torch.cat([torch.arange(length) for length in LENGTHS]),
        "attention_mask": None,
        "cu_seqlens": torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist(), total], dtype=torch.int32),
        "max_seqlen": max(LENGTHS),
    }


def plain_formulas() -> Any:
    """Put formulas in fp32 where the programs for a GPU are; tables carry positions and bounds through."""

    def attend(x: Tensor, weight: Tensor, positions: Tensor, bounds: Tensor, num_heads: int) -> Tensor:
        qkv = x @ weight.t()
        q, k, v = qkv.unflatten(1, (num_heads, 3, -1)).unbind(2)
        q, k = (reference.rotate(each, positions, 10_000.0) for each in (q, k))
        segment = torch.searchsorted(bounds, torch.arange(len(qkv), dtype=torch.int32), right=True)
        heads_first = (each.transpose(0, 1) for each in (q, k, v))
        return (
            F.scaled_dot_product_attention(*heads_first, segment[:, None] == segment)
            .transpose(0, 1)
            .flatten(1)
        )

    def block(x, rstd, weights, rotary, segments, *, num_heads, eps, max_seqlen):
        return reference.block(x, weights, rotary, segments, num_heads, 10_000.0, eps), rstd

    def add_norm(x, branch, weight, eps):
        return x + branch, reference.rms_norm(x + branch, weight, eps)

    return mock.patch.multiple(
        packed_encoder,
        COMPUTE=torch.float32,
        rotary_table=lambda positions, *_: positions,
        attention_tiles=lambda cu_seqlens, *_: cu_seqlens,
        rotary_attention=attend,
        encoder_block=block,
        rms_norm=reference.rms_norm,
        add_rms_norm=add_norm,
        feed_forward=lambda x, w12, w3: reference.swiglu(x @ w12.t()) @ w3.t(),
        linear_cross_entropy=lambda hidden, weight, bias, labels, **_: F.cross_entropy(
            F.linear(hidden, weight, bias), labels, reduction="sum"
        ),
    )


def prepare(options: Options, folder: Path) -> SimpleNamespace:
    """Build what the loop takes for a trainer; replicas draw weights of their own, which DDP replaces."""
    world = World(FP32, options.mode, options.replicas)
    torch.manual_seed(0 if world.is_sharded else world.rank)
    with world.defer_weights() as weights:
        objective = build_objective(options)
    if options.backend:
        if options.padded:
            compile_encoder(objective.backbone, options.backend, is_alone=False)
        else:
            objective.compile_parts(options.backend)
    module = world.prepare(
        objective, overlaps_exchange=not options.behind, reshards=options.reshards, weights=weights
    )
    config = from_dict({"optimizer": {"lr": 0.01, "eps": 1e-3}, "trainer": {"gradient_clipping": 0.5}})
    optimizer = build_optimizer(config.optimizer, objective.model)
    return SimpleNamespace(
        config=config,
        world=world,
        module=module,
        optimizer=optimizer,
        stopwatch=Stopwatch(world.device),
        guard=FiniteGuard(world.device, folder / "bad.json", 1, world.all_reduce_sum),
        progress=SimpleNamespace(step=0),
        state=TrainState(progress=None),
        task=SimpleNamespace(
            objective=objective,
            model=objective.model,
            inputs=lambda batch, device: batch,
            describe=lambda batch: {},
        ),
    )


def own_batches(trainer: SimpleNamespace, step: int, padded: bool) -> list[dict[str, Any]]:
    numbers = range(step * PER_STEP, (step + 1) * PER_STEP)
    return [microbatch(each, padded) for each in numbers if each % trainer.world.size == trainer.world.rank]


def count_targets(trainer: SimpleNamespace, batches: list[dict[str, Any]], fault: str) -> int:
    own = sum(batch["num_targets"] for batch in batches)
    if fault == "mean of each rank":
        return own * trainer.world.size
    return trainer.world.sum_over_ranks([own])[0]


def run_steps(trainer: SimpleNamespace, options: Options) -> dict[str, Any]:
    seen: dict[str, Any] = {"losses": [], "norms": [], "weight_norms": [], "sent": []}
    for step in range(STEPS):
        batches = own_batches(trainer, step, options.padded)
        num_targets = count_targets(trainer, batches, options.fault)
        loss_sum = accumulate(trainer, options, batches, num_targets, seen["sent"])
        steps.judge_and_clip(trainer, [], loss_sum, num_targets)
        if step == 0:
            seen["gradients"] = whole_gradients(trainer)
        step_unless(torch.tensor(False), trainer.optimizer)  # as on a GPU
        trainer.optimizer.zero_grad(set_to_none=True)
        seen["losses"].append(loss_sum.item() / num_targets)
        seen["norms"].append(trainer.state.grad_norm.item())
        seen["weight_norms"].append(trainer.world.weight_norm(trainer.module).item())
    counters = torch._dynamo.utils.counters
    return {**seen, "graphs": counters["stats"]["unique_graphs"], "breaks": dict(counters["graph_break"])}


def accumulate(
    trainer: SimpleNamespace, options: Options, batches: list[Any], num_targets: int, log: list[list[str]]
) -> Tensor:
    """Have the loop accumulate, and note what was sent in each of its microbatches."""
    sent = Sent()
    if options.backend:  # a compiler would see the counting
        return steps.accumulate(trainer, batches, num_targets)
    run: Callable[..., Tensor] = trainer.module.forward

    def marked(**inputs: Any) -> Tensor:
        sent.calls.append("microbatch")
        return run(**inputs)

    with mock.patch.object(trainer.module, "forward", marked), sent:
        total = steps.accumulate(trainer, batches, num_targets)
    log.append(sent.calls)
    return total


def whole_gradients(trainer: SimpleNamespace) -> dict[str, Tensor]:
    return {name: full_tensor(each.grad).clone() for name, each in trainer.task.model.named_parameters()}


def score(trainer: SimpleNamespace) -> tuple[float, int]:
    """Evaluate as many microbatches on every rank, and fewer on none, as `EvalStream` gives them."""
    sums = torch.zeros(2, dtype=torch.float64)
    trainer.task.objective.eval()
    with trainer.world.evaluation_context(trainer.module):
        for number in range(4):
            if number % trainer.world.size == trainer.world.rank:
                result = trainer.task.objective.evaluate(**microbatch(number, padded=False))
                sums += torch.stack([result.loss_sum, result.num_correct])
    trainer.task.objective.train()
    loss_sum, num_correct = trainer.world.all_reduce_sum(sums).tolist()
    return loss_sum, int(num_correct)


def digest(state: dict[str, Tensor]) -> bytes:
    content = b"".join(state[name].numpy().tobytes() for name in sorted(state))
    return hashlib.sha256(content).digest()


def state_on_every_rank(trainer: SimpleNamespace) -> dict[str, Tensor]:
    return {
        name: full_tensor(each).detach().clone() for name, each in trainer.task.model.state_dict().items()
    }


def run(options: Options, folder: Path, number: int) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    trainer = prepare(options, folder)
    world = trainer.world
    began = state_on_every_rank(trainer)
    scores = [] if options.padded else [score(trainer)]
    seen = run_steps(trainer, options)
    scores += [] if options.padded else [score(trainer)]
    trainer.guard.check_weights(trainer.task.model, STEPS)
    ended = state_on_every_rank(trainer)
    digests = [world.gather(digest(state)) for state in (began, ended)]
    held = sum(each.numel() for each in map(local_part, trainer.module.parameters()))
    if world.is_main:
        agree = [len(set(each)) == 1 for each in digests]
        torch.save({**seen, "began": began, "ended": ended, "agree": agree, "held": held, "scores": scores},
                   folder / f"{number}.pt")  # fmt: skip


def contrast(options: Options, folder: Path, number: int) -> None:
    """Do a step of pairs over eight microbatches, shared by the ranks; rank 0 writes its gradient."""
    world = World(FP32, options.mode, options.replicas)
    objective = embedder(0.0)
    module = world.prepare(objective, reshards=options.reshards)
    batches = [batch_of([(3, 5), (4, 6, 2), (7, 3)][: 1 + seed % 3], seed) for seed in range(8)]
    services = SimpleNamespace(
        world=world,
        task=SimpleNamespace(inputs=objective_inputs, objective=objective),
        module=module,
        stopwatch=Stopwatch(world.device),
    )
    num_targets = sum(batch.num_targets for batch in batches)
    loss = ContrastiveStep(InfoNCELoss(TEMPERATURE))(services, batches[world.rank :: world.size], num_targets)
    gradients = {name: full_tensor(each.grad) for name, each in objective.model.named_parameters()}
    if world.is_main:
        torch.save({"loss": loss.item(), "gradients": gradients}, folder / f"{number}.pt")


def local_part(parameter: Tensor) -> Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


if __name__ == "__main__":
    torch.set_num_threads(1)
    with plain_formulas():
        for number, values in enumerate(json.loads(sys.argv[2])):
            options = Options(**values)
            (contrast if options.pairs else run)(options, Path(sys.argv[1]), number)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    exit_process(0)
