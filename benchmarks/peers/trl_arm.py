"""TRL's SFTTrainer as a contender: `python -m peers.trl_arm RESOLVED.json FORM`.

It trains a causal model of the run's config.json from random weights on the segments that the run has
prepared, every token a target, weights in fp32 under autocast. A microbatch has about the tokens of the run's
or, padded, as many rows as fit into them; an optimizer step has about the run's tokens.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

import peers.attention  # noqa: F401  registers attention functions by name
from neobert.config.schema import RunConfig
from neobert.data.store.prepare import prepare
from neobert.train import read_config
from peers.trainer_arm import NEVER, Documents, TakingTurns
from peers.turn_taking import Player


class Form(NamedTuple):
    """Attention function of transformers, and the options of SFTConfig that are not its defaults."""

    attention: str
    options: dict[str, Any]


FREE = {"padding_free": True}
FORMS = {
    "default": Form("sdpa", {}),
    "padding-free": Form("bench_varlen", FREE),
    "padding-free, compiled": Form("bench_varlen", {**FREE, "torch_compile": True}),
    "padding-free, flash_attention_4": Form("flash_attention_4", FREE),
}
"""All without recomputed activations, which SFTConfig has by default."""


class CountingTrainer(SFTTrainer):
    """Counts useful tokens, on the device."""

    num_tokens: int | torch.Tensor = 0

    def training_step(self, model: Any, inputs: dict[str, Any], *more: Any, **named: Any) -> torch.Tensor:
        mask = inputs.get("attention_mask")
        self.num_tokens = self.num_tokens + (inputs["input_ids"].numel() if mask is None else mask.sum())
        return super().training_step(model, inputs, *more, **named)


def build(config: RunConfig, form: Form, output: str) -> CountingTrainer:
    prepared = prepare(config)
    rows = Documents(prepared)
    ids = [rows[index]["input_ids"].tolist() for index in range(len(rows))]
    tokenizer: PreTrainedTokenizerBase = prepared.tokenizer.tokenizer
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    settings = AutoConfig.from_pretrained(config.model.config)
    torch.manual_seed(config.seed)
    attention = {"attn_implementation": form.attention}
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32, **attention)
    trainer, mean = config.trainer, prepared.train.statistics.mean
    num_rows = trainer.per_device_train_batch_size or 1
    num_tokens = num_rows * config.dataset.max_seq_length
    per_microbatch = max(1, round(num_tokens / mean)) if form.options else num_rows
    per_step = num_tokens * (trainer.gradient_accumulation_steps or 1)
    is_gpu = torch.cuda.is_available()
    options = SFTConfig(
        output_dir=output,
        max_steps=NEVER,
        per_device_train_batch_size=per_microbatch,
        gradient_accumulation_steps=max(1, round(per_step / (per_microbatch * mean))),
        learning_rate=config.optimizer.lr,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        gradient_checkpointing=False,
        dataloader_num_workers=4 if is_gpu else 0,
        bf16=is_gpu,
        use_cpu=not is_gpu,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **form.options,
    )
    return CountingTrainer(
        model=model,
        args=options,
        train_dataset=Dataset.from_dict({"input_ids": ids}),
        processing_class=tokenizer,
    )


def main() -> None:
    config, form = read_config(Path(sys.argv[1])), FORMS[sys.argv[2]]
    with tempfile.TemporaryDirectory() as output:
        trainer = build(config, form, output)
        layers = trainer.model.config.num_hidden_layers
        trainer.add_callback(
            TakingTurns(lambda: Player(lambda: int(trainer.num_tokens), layers, is_peer=True))
        )
        trainer.train()


if __name__ == "__main__":
    main()
