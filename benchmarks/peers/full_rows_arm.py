"""`transformers.Trainer` with ModernBERT on full rows: `python -m peers.full_rows_arm WORK OPTIMIZER`.

The peer of `time-to-loss` in its fastest form: full rows of 512 without isolation of passages, the fastest
attention kernel (`peers.attention`), global attention in every block, compiled, bf16 autocast, the decoder on
masked tokens only and the same number of them in every batch, so that nothing is recompiled; no check of the
loss in every step. WORK holds rows.npy [N, 512] and size.json; OPTIMIZER is adamw or muon.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim import AdamW, Muon, Optimizer
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from neobert.config.schema import ModelConfig
from peers import modernbert
from peers.attention import CANDIDATES, fastest_candidate
from peers.trainer_arm import NEVER, TurnTakingCallback
from peers.turn_taking import TurnTaker

ROW_LENGTH, IGNORED, NUM_TOKENS, VOCABULARY = 512, -100, 30_522, 30_528
MASK_ID, PAD_ID, NUM_SPECIAL, SHARE = 103, 0, 1000, 0.3
UNDER_ADAMW = ("embeddings", "decoder", "head")
RATES = {"adamw": (1e-3, 1e-3, 0.01), "muon": (6e-3, 3e-3, 0.5)}
"""Learning rate, learning rate of AdamW and weight decay, the best of the tuning."""


class Rows(Dataset):
    def __init__(self, path: Path) -> None:
        self.rows = np.load(path).astype(np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.rows[index]


def mask(rows: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """Choose a share of the tokens, no special ones: 80 % become [MASK], 10 % random tokens."""
    labels = torch.from_numpy(np.stack(rows))
    flat, count = labels.flatten(), int(SHARE * int((labels != PAD_ID).sum()))
    places = (flat >= NUM_SPECIAL).nonzero().squeeze(1)
    chosen = places[torch.randperm(len(places))[:count]]
    targets = torch.full_like(flat, IGNORED)
    targets[chosen] = flat[chosen]
    inputs = flat.clone()
    inputs[chosen[: int(0.8 * count)]] = MASK_ID
    others = chosen[int(0.8 * count) : int(0.9 * count)]
    inputs[others] = torch.randint(NUM_SPECIAL, NUM_TOKENS, (len(others),))
    return {"input_ids": inputs.view_as(labels), "labels": targets.view_as(labels)}


class CountingTrainer(Trainer):
    num_tokens = 0

    def training_step(self, model: Any, inputs: dict[str, Any], *more: Any, **named: Any) -> torch.Tensor:
        self.num_tokens += inputs["input_ids"].numel()
        return super().training_step(model, inputs, *more, **named)


class MuonAndAdamW(Optimizer):
    """`torch.optim.Muon` for the matrices of the blocks and fused AdamW for all other parameters."""

    def __init__(self, model: torch.nn.Module, lr: float, adam_lr: float, weight_decay: float) -> None:
        matrices, others = [], []
        for name, parameter in model.named_parameters():
            is_of_a_block = not any(part in name.split(".") for part in UNDER_ADAMW)
            (matrices if parameter.ndim == 2 and is_of_a_block else others).append(parameter)
        decayed = [each for each in others if each.ndim > 1]
        norms = [each for each in others if each.ndim < 2]
        muon = {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95, "adjust_lr_fn": "match_rms_adamw"}
        groups = [{"params": decayed}, {"params": norms, "weight_decay": 0.0}]
        is_gpu = next(model.parameters()).is_cuda
        adamw = AdamW(groups, lr=adam_lr, weight_decay=weight_decay, betas=(0.9, 0.98), fused=is_gpu)
        self.parts: tuple[Optimizer, ...] = (Muon(matrices, **muon), adamw)
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, _closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()


def build(layers: int, hidden: int, implementation: str) -> Any:
    shape = ModelConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=hidden // 64,
        intermediate_size=3 * (8 * hidden // 3 // 64 * 64) // 2,
        max_position_embeddings=ROW_LENGTH,
        tie_word_embeddings=True,
    )
    return modernbert.build_modernbert(shape, VOCABULARY, PAD_ID, implementation)


def main() -> None:
    work, optimizer = Path(sys.argv[1]), sys.argv[2]
    size = json.loads((work / "size.json").read_text())
    layers, hidden, rows = size["layers"], size["hidden"], size["rows"]
    is_gpu = torch.cuda.is_available()
    device = "cuda" if is_gpu else "cpu"
    name, candidates = fastest_candidate("concatenated", hidden // 64, rows * ROW_LENGTH, ROW_LENGTH, device)
    (work / f"candidates-{optimizer}.json").write_text(
        json.dumps({"attention": name, "candidates": candidates})
    )
    torch.manual_seed(0)
    model = build(layers, hidden, CANDIDATES[name].implementation)
    lr, adam_lr, decay = RATES[optimizer]
    with tempfile.TemporaryDirectory() as folder, CANDIDATES[name].pinned():
        trainer = CountingTrainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=NEVER,
                per_device_train_batch_size=rows,
                learning_rate=lr,
                lr_scheduler_type="constant_with_warmup",
                warmup_steps=90,
                adam_beta1=0.9,
                adam_beta2=0.98,
                weight_decay=decay,
                max_grad_norm=1.0,
                optim="adamw_torch_fused" if is_gpu else "adamw_torch",
                bf16=is_gpu,
                use_cpu=not is_gpu,
                tf32=True if is_gpu else None,
                torch_compile=is_gpu,
                dataloader_num_workers=8 if is_gpu else 0,
                dataloader_pin_memory=is_gpu,
                dataloader_drop_last=True,
                dataloader_persistent_workers=is_gpu,
                logging_steps=45,
                logging_nan_inf_filter=False,
                save_strategy="no",
                report_to=[],
                remove_unused_columns=False,
                disable_tqdm=True,
            ),
            train_dataset=Rows(work / "rows.npy"),
            data_collator=mask,
            optimizers=(
                MuonAndAdamW(model.to(device), lr, adam_lr, decay) if optimizer == "muon" else None,
                None,
            ),
        )
        trainer.add_callback(
            TurnTakingCallback(lambda: TurnTaker(lambda: trainer.num_tokens, layers, is_peer=True))
        )
        trainer.train()


if __name__ == "__main__":
    main()
