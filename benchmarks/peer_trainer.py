"""Loss and seconds of `transformers.Trainer` with Hugging Face's ModernBERT on the text of `passages.py`.

    python benchmarks/peer_trainer.py WORK --lr 1e-3 --steps 3250 --output FILE [--seed 0]

The peer in a fast form: full rows of 512 without isolation of passages, SDPA without a mask, global
attention in every block, compiled, bf16 autocast, fused AdamW, the decoder on masked tokens only, and the
same number of them in every batch, so that nothing is recompiled; no check of the loss in every step, which
would wait for the GPU. Rotary positions as ModernBERT has them before its context is extended. Cosine to zero
over the steps. Seconds are those of the steps (`step_clock.py`), without compilation and evaluation.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from held_out import MASK_ID, NUM_SPECIAL, PAD_ID, full_rows, held_out
from model_sizes import SIZES
from step_clock import StepClock
from torch.utils.data import Dataset
from transformers import ModernBertConfig, ModernBertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

ROW_LENGTH, IGNORED, NUM_TOKENS, VOCABULARY = 512, -100, 30_522, 30_528
"""The vocabulary is that of the tokenizer, rounded up."""
ROTARY = {"rope_type": "default", "rope_theta": 10_000.0}
"""Of ModernBERT's training at 1,024 tokens (arXiv:2412.13663). Its config.json has 160,000, for 8,192."""
SETTINGS = ("size", "rows", "steps", "lr", "warmup", "beta2", "weight_decay", "share", "seed")


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


def build(size: str) -> ModernBertForMaskedLM:
    layers, hidden = SIZES[size]
    markers = {"bos_token_id": 101, "eos_token_id": 102, "cls_token_id": 101, "sep_token_id": 102}
    config = ModernBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=8 * hidden // 3 // 64 * 64,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        max_position_embeddings=ROW_LENGTH,
        layer_types=["full_attention"] * layers,
        rope_parameters={"full_attention": dict(ROTARY), "sliding_attention": dict(ROTARY)},
        tie_word_embeddings=True,
        sparse_prediction=True,
        pad_token_id=0,
        attn_implementation="sdpa",
        **markers,
    )
    return ModernBertForMaskedLM(config)


def arguments(chosen: argparse.Namespace, folder: str) -> TrainingArguments:
    is_gpu = torch.cuda.is_available()
    return TrainingArguments(
        output_dir=folder,
        max_steps=chosen.steps,
        per_device_train_batch_size=chosen.rows,
        learning_rate=chosen.lr,
        lr_scheduler_type="cosine",
        warmup_steps=round(chosen.warmup * chosen.steps),
        adam_beta1=0.9,
        adam_beta2=chosen.beta2,
        weight_decay=chosen.weight_decay,
        max_grad_norm=1.0,
        optim="adamw_torch_fused" if is_gpu else "adamw_torch",
        bf16=is_gpu,
        tf32=True if is_gpu else None,
        torch_compile=is_gpu,
        torch_compile_mode=chosen.compile_mode if is_gpu else None,
        dataloader_num_workers=8 if is_gpu else 0,
        dataloader_drop_last=True,
        dataloader_persistent_workers=is_gpu,
        logging_steps=max(1, chosen.steps // 20),
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        seed=chosen.seed,
        remove_unused_columns=False,
        disable_tqdm=True,
    )


def train(chosen: argparse.Namespace) -> tuple[ModernBertForMaskedLM, dict[str, Any]]:
    """Train; return the model, ready for evaluation, and what was measured on the way."""
    if torch.cuda.device_count() > 1:
        raise SystemExit("the Trainer would use all GPUs: set CUDA_VISIBLE_DEVICES to one")
    torch.manual_seed(chosen.seed)
    model, clock = build(chosen.size), StepClock(chosen.steps)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=arguments(chosen, folder),
            train_dataset=Rows(chosen.work / "passages.npz"),
            data_collator=Masking(chosen.share),
            callbacks=[Timing(clock)],
        )
        trainer.train()
    seconds = clock.seconds
    tokens = chosen.steps * chosen.rows * ROW_LENGTH
    model.eval()
    model.sparse_prediction = False
    return model, {
        **{name: getattr(chosen, name) for name in SETTINGS},
        "parameters": sum(each.numel() for each in model.parameters()),
        "seconds": round(seconds, 1),
        "tokens": tokens,
        "tokens_per_sec": round(tokens / seconds),
        "train_losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
    }


def evaluate(model: ModernBertForMaskedLM, work: Path) -> dict[str, float]:
    """Return loss and accuracy on the passages that are held out."""
    return held_out(lambda ids, mask: model(ids, mask).logits, work / "passages.npz", model.device.type)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--size", choices=list(SIZES), default="53M")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3250)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=float, default=0.1)
    parser.add_argument("--beta2", type=float, default=0.98)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile-mode", choices=("default", "reduce-overhead"), default="default")
    parser.add_argument("--output", type=Path, required=True)
    return parser


def main() -> None:
    chosen = parser().parse_args()
    model, found = train(chosen)
    line = {**found, **evaluate(model, chosen.work)}
    with chosen.output.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line))


if __name__ == "__main__":
    main()
