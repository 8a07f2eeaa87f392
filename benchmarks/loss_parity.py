"""Loss of compiled bf16 packed training, compared with fp32, eager, one document per row.

    python benchmarks/loss_parity.py WORK_DIR [--steps 300] [--output DIR]

NeoBERT-250M on T = 8,192 tokens a step, the real trainer on both sides, each in its own process. Seed,
documents, their order and their masks are the same by construction: the unpacked side splits the packed
microbatches into padded rows, sorted by length into four microbatches to reduce padding. It runs on the
model's own modules and SDPA, in fp32 without TF32. The side `modules` is the packed side on the model's own
modules, under autocast with a residual stream in fp32: it tells bf16 from the kernels. The text is in the
folder of NEOBERT_TEST_DATA (pretrain/, tokenizers/bert-base-uncased/), else CPython's own documentation.
Figure: the largest relative difference of the loss, averaged over 10 steps, from step 10 to the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measurement import write_measurement
from torch import Tensor

from neobert.config import from_dict
from neobert.config.schema import RunConfig
from neobert.data.batches.streams import Microbatch, TrainStream
from neobert.data.store.prepare import prepare
from neobert.parallel import World
from neobert.training.loop.assembly import assemble, make_reproducible
from neobert.training.loop.signals import Signals
from neobert.training.loop.steps import run_step
from neobert.training.state.trainer import Trainer

FORMS = ("packed", "modules", "unpacked")
SHAPE = {"num_hidden_layers": 28, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
ROWS, ROW_LENGTH, GROUPS, VOCABULARY = 8, 1024, 4, 16_384
WINDOW, TARGET = 10, 0.01
PACKED = {"mixed_precision": "bf16", "torch_compile": True}
EXACT = {
    "mixed_precision": "no",
    "tf32": False,
    "torch_compile": False,
    "gradient_accumulation_steps": GROUPS,
}
IGNORED = -100


def text_and_tokenizer() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the config sections `dataset` and `tokenizer`."""
    folder = os.environ.get("NEOBERT_TEST_DATA")
    if folder is None:
        return {"name": "builtin:python-docs"}, {"vocab_size": VOCABULARY}
    root = Path(folder).resolve()
    return {"path": str(root / "pretrain")}, {"path": str(root / "tokenizers" / "bert-base-uncased")}


def packed_config(work: Path, steps: int) -> RunConfig:
    """Return the config of the packed side, from which `side_config` derives the other sides."""
    text, words = text_and_tokenizer()
    return from_dict(
        {
            "model": {**SHAPE, "max_position_embeddings": ROW_LENGTH},
            "tokenizer": words,
            "dataset": {**text, "max_seq_length": ROW_LENGTH, "cache_dir": str(work / "cache")},
            "optimizer": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1},
            "scheduler": {"warmup_steps": steps // 6},
            "trainer": {"per_device_train_batch_size": ROWS, "max_steps": steps, **PACKED},
        }
    )


def side_config(form: str, packed: RunConfig) -> RunConfig:
    """Return the config of the side `form`, derived from the packed side."""
    if form == "packed":
        return packed
    attention = "torch_varlen" if form == "modules" else "sdpa"
    on_modules = replace(packed, model=replace(packed.model, attn_backend=attention, kernel_backend="torch"))
    if form == "modules":
        return on_modules
    return replace(
        on_modules,
        datacollator=replace(packed.datacollator, pack_sequences=False),
        trainer=replace(packed.trainer, **EXACT),
    )


class Rows:
    """The documents of packed microbatches, one per row, as `GROUPS` padded microbatches each."""

    def __init__(self, packed: TrainStream) -> None:
        self.close = packed.close
        self._groups = (group for batch in packed for group in unpack(batch))

    def __next__(self) -> Microbatch:
        return next(self._groups)


def unpack(batch: Microbatch) -> list[Microbatch]:
    """Split the documents of a packed microbatch into rows, sorted by length, in `GROUPS` parts."""
    bounds = batch.cu_seqlens[: batch.num_segments + 1].to(torch.int64)
    order = bounds.diff().argsort(stable=True)
    return [pad_documents(batch, bounds, members) for members in order.tensor_split(GROUPS)]


def pad_documents(batch: Microbatch, bounds: Tensor, members: Tensor) -> Microbatch:
    """Pad some documents of a packed run: [T] to [B, S], where S is the longest of them."""
    lengths = bounds.diff()[members]
    places = torch.arange(int(lengths.max()))[None, :]
    is_token = places < lengths[:, None]
    source = torch.where(is_token, bounds[members][:, None] + places, 0)
    labels = torch.where(is_token, batch.labels[source], IGNORED)
    return replace(
        batch,
        input_ids=torch.where(is_token, batch.input_ids[source], 0),
        labels=labels,
        position_ids=torch.where(is_token, batch.position_ids[source], 0),
        cu_seqlens=None,
        attention_mask=is_token,
        num_tokens=int(is_token.sum()),
        num_targets=int((labels != IGNORED).sum()),
        num_segments=len(members),
        sample_ids=batch.sample_ids[members],
        groups=torch.arange(len(members)),
    )


def train_side(form: str, config: RunConfig, work: Path) -> dict[str, Any]:
    """Train one side; return its kernels and the loss of every step."""
    own = side_config(form, config)
    run_dir = work / form
    run_dir.mkdir(parents=True, exist_ok=True)
    world = World.from_config(own)
    make_reproducible(own, world)
    trainer = assemble(own, run_dir, world, Signals(), None)
    if form == "unpacked":
        trainer.batches.close()
        prepared = prepare(config)
        trainer.batches = Rows(TrainStream(prepared, config, prepared.tokenizer))
    try:
        seen = [step_loss(trainer) for _ in range(config.trainer.max_steps)]
    finally:
        trainer.batches.close()
    tokens = trainer.progress.tokens_total
    return {"attention_kernel": trainer.task.backbone.attention, "tokens": tokens, "losses": seen}


def step_loss(trainer: Trainer) -> float:
    run_step(trainer)
    trainer.guard.check()
    return trainer.progress.loss.take()


def moving_average(values: list[float]) -> list[float]:
    """Return the moving average over `WINDOW` values, from the first full window on."""
    return [sum(values[end - WINDOW : end]) / WINDOW for end in range(WINDOW, len(values) + 1)]


def compare(packed: dict[str, Any], unpacked: dict[str, Any]) -> dict[str, Any]:
    """Return the relative differences of both loss curves, smoothed and of single steps."""
    pairs = zip(moving_average(packed["losses"]), moving_average(unpacked["losses"]), strict=True)
    smooth = [abs(a - b) / b for a, b in pairs]
    single = [abs(a - b) / b for a, b in zip(packed["losses"], unpacked["losses"], strict=True)]
    return {
        "window": WINDOW,
        "largest": max(smooth),
        "final": smooth[-1],
        "first_step": single[0],
        "largest_of_a_single_step": max(single),
        "is_same_text": packed["tokens"] == unpacked["tokens"],
    }


def run_in_process(form: str) -> dict[str, Any]:
    """Train one side in a child process with this process's arguments; exit with its output if it fails."""
    command = [sys.executable, __file__, *sys.argv[1:], "--form", form]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the {form} side failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--output", type=Path, help="folder for the JSON file")
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    config = packed_config(chosen.work.resolve(), chosen.steps)
    if chosen.form:
        print(json.dumps(train_side(chosen.form, config, chosen.work.resolve())))
        return
    sides = {form: run_in_process(form) for form in FORMS}
    found = compare(sides["packed"], sides["unpacked"])
    found["modules_against_unpacked"] = compare(sides["modules"], sides["unpacked"])
    print(json.dumps(found, indent=1))
    if chosen.output:
        path = chosen.output / "loss-parity.json"
        write_measurement(path, found["largest"], "relative difference", TARGET, {**found, **sides})


if __name__ == "__main__":
    main()
