"""Loss and seconds of NeoBERT in a plain loop of torch, which takes nothing from this project but the model.

    python benchmarks/plain_loop.py WORK --form passages --init scaled --output FILE [--steps 600] [--seed 0]

WORK holds what `passages.py` wrote. Rows are whole passages, one in each and padded, so that no token attends
to another passage; or they are full, cut from concatenated passages as in `peer_trainer.py`. A step has as
many tokens in both forms, and as many as one of `recipe_screen.py` with the same `--rows`. Model, optimizer
and schedule are those of its base trial, the masks those of the peer. With `--form microbatches`, passages
and masks of each step are this trainer's, a passage in each row. Besides the loss of the passages that are
held out, each a row, there is that of the same tokens in full rows. `--softcap` limits logits by a hyperbolic
tangent; this trainer has no such key.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from held_out import PAD_ID, full_rows, held_out, padded_rows
from model_sizes import SIZES
from numpy.typing import NDArray
from peer_trainer import IGNORED, ROW_LENGTH, VOCABULARY, Masking
from recipe_screen import BASE, run_config, shape_of
from step_clock import StepClock
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from transformers import get_cosine_schedule_with_warmup

from neobert.data.batches.streams import TrainStream
from neobert.data.store.prepare import prepare
from neobert.model import NeoBERTConfig, NeoBERTLMHead

FORMS = {"passages": padded_rows, "concatenated": full_rows}
MICROBATCHES = "microbatches"
MORE_ROWS = 1.2
"""Rows of a step, a passage in each, over `--rows`: one shape for all steps."""
SHARE = 0.2
ASKED = ("form", "init", "size", "rows", "steps", "softcap", "seed")


def build(size: str, init: str) -> NeoBERTLMHead:
    of_text = {"vocab_size": VOCABULARY, "max_position_embeddings": ROW_LENGTH}
    return NeoBERTLMHead(NeoBERTConfig(**shape_of(size), **of_text, init=init))


def shuffled(rows: NDArray[np.int64], num_tokens: int, seed: int) -> Iterator[list[NDArray[np.int64]]]:
    """Yield rows with a number of tokens on average, in another order in each epoch."""
    draw, count = np.random.default_rng(seed), round(num_tokens / (rows != PAD_ID).sum(1).mean())
    while True:
        order = draw.permutation(len(rows))
        for first in range(0, len(rows) - count + 1, count):
            yield list(rows[order[first : first + count]])


def batches(chosen: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the ids and labels [N, S] of each step."""
    return of_trainer(chosen) if chosen.form == MICROBATCHES else of_passages(chosen)


def of_passages(chosen: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield passages, or rows of them, with new masks in each step."""
    masking = Masking(SHARE)
    rows = FORMS[chosen.form](chosen.work / "passages.npz", "train")
    for drawn in shuffled(rows, chosen.rows * ROW_LENGTH, chosen.seed):
        batch = masking(drawn)
        yield batch["input_ids"], batch["labels"]


def of_trainer(chosen: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the microbatches of this trainer, each passage in a row; a filler row has a marker only."""
    section = {"datacollator": {"mlm_probability": SHARE}}
    config = run_config(chosen.work, "tiny", chosen.rows, {**BASE, "seed": chosen.seed}, section)
    prepared = prepare(config)
    stream = TrainStream(prepared, config, prepared.tokenizer)
    try:
        while True:
            batch = next(stream)
            bounds = batch.cu_seqlens[: batch.num_segments + 1].tolist()
            ids = torch.full((max(len(bounds), round(MORE_ROWS * chosen.rows)), ROW_LENGTH), PAD_ID)
            labels = torch.full_like(ids, IGNORED)
            ids[:, 0] = batch.input_ids[0]
            for row, (first, last) in enumerate(itertools.pairwise(bounds)):
                ids[row, : last - first] = batch.input_ids[first:last]
                labels[row, : last - first] = batch.labels[first:last]
            yield ids, labels
    finally:
        stream.close()


def optimizer_of(model: nn.Module) -> torch.optim.AdamW:
    """Build AdamW; vectors and the embedding do not decay."""
    embedding = model.get_input_embeddings().weight
    decayed = [each for each in model.parameters() if each.ndim == 2 and each is not embedding]
    kept = [embedding, *(each for each in model.parameters() if each.ndim < 2)]
    groups = [
        {"params": decayed, "weight_decay": BASE["weight_decay"]},
        {"params": kept, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=BASE["lr"], betas=BASE["betas"], fused=torch.cuda.is_available())


def train(chosen: argparse.Namespace, device: str) -> tuple[nn.Module, dict[str, Any]]:
    """Train; return the model and what was measured on the way."""
    torch.manual_seed(chosen.seed)
    model = build(chosen.size, chosen.init).to(device).train()
    optimizer, clock, drawn = optimizer_of(model), StepClock(chosen.steps), batches(chosen)
    schedule = get_cosine_schedule_with_warmup(optimizer, round(BASE["warmup"] * chosen.steps), chosen.steps)
    loss_of = torch.compile(masked_loss) if device == "cuda" else masked_loss
    losses, num_tokens = [], 0
    for step in range(1, chosen.steps + 1):
        ids, labels = next(drawn)
        num_tokens += int((ids != PAD_ID).sum())
        ids, labels = ids.to(device), labels.to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = loss_of(model, ids, labels, chosen.softcap)
        loss.backward()
        clip_grad_norm_(model.parameters(), BASE["clip"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        clock.ended(step)
    curve = torch.stack(losses).unflatten(0, (-1, max(1, chosen.steps // 20))).mean(1)
    return model.eval(), {
        "seconds": round(clock.seconds, 2),
        "tokens": num_tokens,
        "train_losses": [round(loss, 4) for loss in curve.tolist()],
    }


def masked_loss(model: nn.Module, ids: Tensor, labels: Tensor, softcap: float | None) -> Tensor:
    logits = capped(model(input_ids=ids, attention_mask=ids != PAD_ID).logits, softcap)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    return logits if softcap is None else softcap * torch.tanh(logits.float() / softcap)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--form", choices=[*FORMS, MICROBATCHES], required=True)
    parser.add_argument("--init", choices=("published", "scaled"), required=True)
    parser.add_argument("--size", choices=list(SIZES), default="53M")
    parser.add_argument("--rows", type=int, default=128, help="of 512 tokens, in a step")
    parser.add_argument("--steps", type=int, default=BASE["steps"], help="a multiple of 20")
    parser.add_argument("--softcap", type=float, help="limit of the logits; default: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, found = train(chosen, device)

    def logits_of(ids: Tensor, is_token: Tensor) -> Tensor:
        return capped(model(input_ids=ids, attention_mask=is_token).logits, chosen.softcap)

    path = chosen.work / "passages.npz"
    found |= held_out(logits_of, path, device)
    found["loss_in_full_rows"] = held_out(logits_of, path, device, full_rows)["loss"]
    asked = {name: getattr(chosen, name) for name in ASKED}
    line = json.dumps({**asked, **found})
    with chosen.output.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
