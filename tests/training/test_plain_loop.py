"""The trainer learns what a plain loop learns.

The loop knows torch and transformers only: one document at a time, without packing, AdamW, a cosine.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModelForMaskedLM, get_cosine_schedule_with_warmup

from neobert.config import from_dict
from neobert.data.batches.streams import Microbatch, TrainStream
from neobert.data.store.prepare import prepare

STEPS, WARMUP, MICROBATCHES, DECAY, CLIPPING, RATE, BETAS = 24, 6, 2, 1.0, 0.5, 1e-2, (0.9, 0.98)
TOLERANCE = 1e-4
SECTIONS = {
    "model": {"num_hidden_layers": 2},
    "optimizer": {"lr": RATE, "betas": list(BETAS), "weight_decay": DECAY},
    "scheduler": {"name": "cosine", "warmup_steps": WARMUP, "final_lr_ratio": 0.0},
    "trainer": {
        "max_steps": STEPS,
        "save_steps": STEPS,
        "logging_steps": 1,
        "gradient_accumulation_steps": MICROBATCHES,
        "gradient_clipping": CLIPPING,
    },
}
Document = tuple[Tensor, Tensor]
"""Input ids and labels [S] of a document; positions without a target have the label -100."""


def documents(batch: Microbatch) -> Iterator[Document]:
    for first, last in pairwise(batch.cu_seqlens[: batch.num_segments + 1].tolist()):
        yield batch.input_ids[first:last].long(), batch.labels[first:last].long()


def steps_of(run_dir: Path) -> list[list[Document]]:
    """Read the documents of each optimizer step of a run."""
    config = from_dict(json.loads((run_dir / "resolved.json").read_text(encoding="utf-8")))
    prepared = prepare(config)
    stream = TrainStream(prepared, config, prepared.tokenizer)
    try:
        return [[each for _ in range(MICROBATCHES) for each in documents(next(stream))] for _ in range(STEPS)]
    finally:
        stream.close()


def decayed_apart(model: nn.Module, decays_embeddings: bool) -> list[dict[str, object]]:
    """Group the parameters: matrices of the blocks decay; norms, biases and the embedding do not."""
    embedding = model.get_input_embeddings().weight
    decayed = [each for each in model.parameters() if each.ndim == 2 and each is not embedding]
    others = [each for each in model.parameters() if not any(each is one for one in decayed)]
    share = DECAY if decays_embeddings else 0.0
    return [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": share}]


def plain_loop(
    folder: Path, steps: list[list[Document]], *, decays_embeddings: bool = False
) -> tuple[list[float], list[float], nn.Module]:
    """Train a folder's model; return losses and gradient norms of all steps, and the model."""
    model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).train()
    optimizer = torch.optim.AdamW(decayed_apart(model, decays_embeddings), lr=RATE, betas=BETAS)
    schedule = get_cosine_schedule_with_warmup(optimizer, WARMUP, STEPS)
    losses, norms = [], []
    for step in steps:
        optimizer.zero_grad()
        num_targets = sum(int((labels != -100).sum()) for _, labels in step)
        loss_sum = sum(
            F.cross_entropy(model(input_ids=ids[None]).logits[0], labels, reduction="sum")
            for ids, labels in step
        )
        loss = loss_sum / num_targets
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(clip_grad_norm_(model.parameters(), CLIPPING)))
        optimizer.step()
        schedule.step()
    return losses, norms, model


@pytest.fixture
def trained(make_run, run) -> tuple[Path, Path]:
    """A folder of weights, and a run that starts from them."""
    trainer, model = SECTIONS["trainer"], SECTIONS["model"]
    first = make_run("first", **SECTIONS | {"trainer": trainer | {"max_steps": 1, "save_steps": 1}})
    assert run(first) == 0
    folder = first / "checkpoints" / "1"
    run_dir = make_run("run", **SECTIONS | {"model": model | {"pretrained_checkpoint": str(folder)}})
    assert run(run_dir) == 0
    return folder, run_dir


def apart(some: list[float], others: list[float]) -> float:
    """Return the largest relative difference."""
    return max(abs(a / b - 1) for a, b in zip(some, others, strict=True))


def test_a_plain_loop_over_the_same_documents_and_masks_learns_the_same(trained, metrics):
    folder, run_dir = trained
    lines = [line for line in metrics(run_dir) if "train/loss" in line]
    steps, own = steps_of(run_dir), [line["train/loss"] for line in lines]
    losses, norms, model = plain_loop(folder, steps)
    assert min(losses) < 0.9 * losses[0]
    assert max(norms) > CLIPPING, "nothing was clipped"
    assert apart(losses, own) < TOLERANCE
    assert apart(norms, [line["train/grad_norm"] for line in lines]) < 10 * TOLERANCE
    weights = load_file(run_dir / "checkpoints" / str(STEPS) / "model.safetensors")
    for name, weight in model.state_dict().items():
        if name in weights:
            assert torch.dist(weight, weights[name]) < 0.01 * weight.norm(), name

    other, _, _ = plain_loop(folder, steps, decays_embeddings=True)
    assert apart(other, own) > 10 * TOLERANCE, "a planted fault was not seen"
