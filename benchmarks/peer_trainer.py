"""Held-out loss of `transformers.Trainer` with Hugging Face's ModernBERT, for many recipes in one process.

    python benchmarks/peer_trainer.py WORK RECIPES.json --output FILE [--size 53M]

WORK holds what `passages.py` wrote. A recipe sets the keys that differ from BASE. The peer in its fastest
form: full rows of 512 without isolation of passages, the fastest attention kernel (`peers.attention`), global
attention in every block, compiled, bf16 autocast, the decoder on masked tokens only, and the same number of
them in every batch, so that nothing is recompiled; no check of the loss in every step, which would wait for
the GPU. Rotary positions as ModernBERT has them before its context is extended. Before the first recipe a
step is profiled: dense attention ends the program. Seconds are those of the steps (`step_clock.py`), without
compilation and evaluation.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from held_out import MASK_ID, NUM_SPECIAL, PAD_ID, evaluate, full_rows
from model_sizes import SIZES
from peers import modernbert
from peers.attention import CANDIDATES, fastest
from peers.kernels import require_fused_attention, summary
from peers.optimizers import MuonAndAdamW
from peers.profiled import Profiled
from step_clock import UNTIMED, StepClock
from torch.utils.data import Dataset
from transformers import ModernBertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

from neobert.config.schema import ModelConfig

ROW_LENGTH, IGNORED, NUM_TOKENS, VOCABULARY = 512, -100, 30_522, 30_528
"""The vocabulary is that of the tokenizer, rounded up."""
ROTARY = {"rope_type": "default", "rope_theta": 10_000.0}
"""Of ModernBERT's training at 1,024 tokens (arXiv:2412.13663). Its config.json has 160,000, for 8,192."""
BASE: dict[str, Any] = {
    "steps": 1_526,
    "optimizer": "adamw",
    "lr": 1e-3,
    "adam_lr": None,
    "weight_decay": 0.01,
    "warmup": 0.1,
    "beta2": 0.98,
    "shape": "linear",
    "share": 0.3,
    "seed": 0,
}
"""adam_lr: under Muon, of all that Muon does not train."""
WARM_UP = UNTIMED + 4


class Rows(Dataset):
    """Full rows, cut from concatenated passages."""

    def __init__(self, path: Path) -> None:
        self.rows = full_rows(path, "train")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.rows[index]


class Masking:
    """Chooses a share of the tokens, padding not counted and no markers: 80 % become [MASK], 10 % random."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, rows: list[np.ndarray]) -> dict[str, torch.Tensor]:
        labels = torch.from_numpy(np.stack(rows))
        flat, count = labels.flatten(), int(self.share * int((labels != PAD_ID).sum()))
        places = (flat >= NUM_SPECIAL).nonzero().squeeze(1)
        chosen = places[torch.randperm(len(places))[:count]]
        targets = torch.full_like(flat, IGNORED)
        targets[chosen] = flat[chosen]
        inputs = flat.clone()
        inputs[chosen[: int(0.8 * count)]] = MASK_ID
        others = chosen[int(0.8 * count) : int(0.9 * count)]
        inputs[others] = torch.randint(NUM_SPECIAL, NUM_TOKENS, (len(others),))
        return {"input_ids": inputs.view_as(labels), "labels": targets.view_as(labels)}


class Timing(TrainerCallback):
    """Tells the clock of each optimizer step."""

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        self.clock.ended(state.global_step)


def build(size: str, implementation: str = "sdpa") -> ModernBertForMaskedLM:
    layers, hidden = SIZES[size]
    shape = ModelConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=hidden // 64,
        intermediate_size=3 * (8 * hidden // 3 // 64 * 64) // 2,
        max_position_embeddings=ROW_LENGTH,
        tie_word_embeddings=True,
    )
    rotary = {"full_attention": dict(ROTARY), "sliding_attention": dict(ROTARY)}
    return modernbert.build(shape, VOCABULARY, 0, implementation, rope_parameters=rotary)


def arguments(recipe: Mapping[str, Any], rows: int, folder: str) -> TrainingArguments:
    is_gpu = torch.cuda.is_available()
    return TrainingArguments(
        output_dir=folder,
        max_steps=recipe["steps"],
        per_device_train_batch_size=rows,
        learning_rate=recipe["lr"],
        lr_scheduler_type=recipe["shape"],
        warmup_steps=round(recipe["warmup"] * recipe["steps"]),
        adam_beta1=0.9,
        adam_beta2=recipe["beta2"],
        weight_decay=recipe["weight_decay"],
        max_grad_norm=1.0,
        optim="adamw_torch_fused" if is_gpu else "adamw_torch",
        bf16=is_gpu,
        tf32=True if is_gpu else None,
        torch_compile=is_gpu,
        dataloader_num_workers=8 if is_gpu else 0,
        dataloader_pin_memory=is_gpu,
        dataloader_drop_last=True,
        dataloader_persistent_workers=is_gpu,
        logging_steps=max(1, recipe["steps"] // 20),
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        seed=recipe["seed"],
        remove_unused_columns=False,
        disable_tqdm=True,
    )


@dataclass
class Peer:
    """A model that is trained again for each recipe, and the kernels of its step."""

    work: Path
    size: str
    rows: int
    attention: str
    candidates: Mapping[str, Any]
    model: ModernBertForMaskedLM
    kernels: dict[str, Any] = field(default_factory=dict)
    attention_in_profile: str = ""

    def train(self, recipe: Mapping[str, Any], callbacks: Sequence[TrainerCallback] = ()) -> dict[str, Any]:
        """Train from fresh weights; return what was measured on the way."""
        clock = StepClock(recipe["steps"])
        self._reset(recipe["seed"])
        with tempfile.TemporaryDirectory() as folder, CANDIDATES[self.attention].pinned():
            trainer = Trainer(
                model=self.model,
                args=arguments(recipe, self.rows, folder),
                train_dataset=Rows(self.work / "passages.npz"),
                data_collator=Masking(recipe["share"]),
                callbacks=[Timing(clock), *callbacks],
                optimizers=(self._optimizer(recipe), None),
            )
            trainer.train()
        tokens = recipe["steps"] * self.rows * ROW_LENGTH
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        self.model.eval()
        return {
            "size": self.size,
            "rows": self.rows,
            "recipe": dict(recipe),
            "attention": self.attention_in_profile,
            "kernels": self.kernels,
            "parameters": sum(each.numel() for each in self.model.parameters()),
            "seconds": round(clock.seconds, 1),
            "tokens": tokens,
            "tokens_per_sec": round(tokens / clock.seconds),
            "train_losses": losses,
        }

    def _reset(self, seed: int) -> None:
        """Draw weights, and undo what an earlier Trainer left on the model."""
        torch._dynamo.reset()
        # A model that accelerate calls prepared would get no autocast: the next recipe would train in fp32.
        for name in ("forward", "_original_forward", "_is_accelerate_prepared"):
            self.model.__dict__.pop(name, None)
        torch.manual_seed(seed)
        fresh = build(self.size)
        with torch.no_grad():
            for weight, drawn in zip(self.model.parameters(), fresh.parameters(), strict=True):
                weight.copy_(drawn)
        self.model.zero_grad(set_to_none=True)
        self.model.sparse_prediction = True
        self.model.train()

    def _optimizer(self, recipe: Mapping[str, Any]) -> MuonAndAdamW | None:
        """Return Muon; AdamW is built by the Trainer."""
        if recipe["optimizer"] == "adamw":
            return None
        return MuonAndAdamW(
            self.model.to("cuda" if torch.cuda.is_available() else "cpu"),
            lr=recipe["lr"],
            adam_lr=recipe["adam_lr"] or recipe["lr"],
            weight_decay=recipe["weight_decay"],
            betas=(0.9, recipe["beta2"]),
        )

    def evaluate(self) -> dict[str, float]:
        """Return loss and accuracy on the passages that are held out."""
        self.model.sparse_prediction = False

        def logits_of(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            # With four dimensions, transformers passes the mask on to the attention function as it is.
            return self.model(ids, mask[:, None, None, :]).logits

        return evaluate(logits_of, self.work / "passages.npz", self.model.device.type)


def compiled(work: Path, size: str, rows: int) -> Peer:
    """Choose the attention kernel, compile in a few steps, and profile one of them."""
    if torch.cuda.device_count() > 1:
        raise SystemExit("the Trainer would use all GPUs: set CUDA_VISIBLE_DEVICES to one")
    layers, hidden = SIZES[size]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name, candidates = fastest("concatenated", hidden // 64, rows * ROW_LENGTH, ROW_LENGTH, device)
    model = build(size, CANDIDATES[name].implementation)
    peer, profiled = Peer(work, size, rows, name, candidates, model), Profiled(UNTIMED)
    peer.train({**BASE, "steps": WARM_UP}, [profiled])
    peer.attention_in_profile = require_fused_attention(profiled.kernels, layers)
    peer.kernels = {"candidates": candidates, **summary(profiled.kernels)}
    return peer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("recipes", type=Path)
    parser.add_argument("--size", choices=list(SIZES), default="53M")
    parser.add_argument("--rows", type=int, default=64, help="of 512 tokens, in a step")
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args()
    recipes = [{**BASE, **recipe} for recipe in json.loads(chosen.recipes.read_text())]
    if unknown := {name for recipe in recipes for name in recipe} - BASE.keys():
        parser.error(f"recipes set {', '.join(sorted(unknown))}; known are {', '.join(BASE)}")
    peer = compiled(chosen.work.resolve(), chosen.size, chosen.rows)
    print(json.dumps(peer.kernels), flush=True)
    for recipe in recipes:
        line = {**peer.train(recipe), **peer.evaluate()}
        with chosen.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
