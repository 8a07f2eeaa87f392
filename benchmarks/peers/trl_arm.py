"""TRL's SFTTrainer as a contender: `python -m peers.trl_arm RESOLVED.json ROWS.pt FORM [STEPS]`.

It trains the model of a run on the run's own microbatches (`peers/own_rows.py`), in their order, with as many
to a step, and with the run's rate, betas, weight decay and clipping; weights are in fp32 under autocast. The
padded form gets the segments of the same rows, half as many to a microbatch: with padding they take about the
room of a packed row. With STEPS it prints the loss of each step as JSON instead of taking turns.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

import peers.attention  # noqa: F401  registers attention functions by name
from neobert.bench.arm import keep_standard_output
from neobert.config.schema import RunConfig
from neobert.data.store.prepare import prepare
from neobert.train import read_config
from peers.trainer_arm import NEVER, TakingTurns
from peers.turn_taking import Player

Rows = list[dict[str, Any]]


class Form(NamedTuple):
    """Attention function of transformers, and the options of SFTConfig that are not its defaults."""

    attention: str
    options: dict[str, Any]


FREE = {"padding_free": True}
FORMS = {
    "default": Form("sdpa", {}),
    "padding-free": Form("bench_varlen", FREE),
    "padding-free, compiled": Form("bench_varlen", {**FREE, "torch_compile": True}),
    "padding-free, liger": Form("bench_varlen", {**FREE, "use_liger_kernel": True}),
    "padding-free, flash_attention_4": Form("flash_attention_4", FREE),
    "padding-free, flash_attention_4, compiled": Form("flash_attention_4", {**FREE, "torch_compile": True}),
}
"""All without recomputed activations, which SFTConfig has by default."""


class CountingTrainer(SFTTrainer):
    """Counts useful tokens: those of the padded rows, or those that each packed row is known to have."""

    num_tokens: int | torch.Tensor = 0
    known: Any = None

    def training_step(self, model: Any, inputs: dict[str, Any], *more: Any, **named: Any) -> torch.Tensor:
        self.num_tokens = self.num_tokens + (
            next(self.known) if self.known else inputs["attention_mask"].sum()
        )
        return super().training_step(model, inputs, *more, **named)


def segments(rows: Rows) -> Rows:
    """Return the segments of packed rows as rows, without those of padding, which have no labels."""
    parts = []
    for row in rows:
        pieces = (row[name].split(row["seq_lengths"]) for name in ("input_ids", "labels"))
        parts += [{"input_ids": ids, "labels": labels} for ids, labels in zip(*pieces, strict=True)]
    return [part for part in parts if bool((part["labels"] >= 0).any())]


def model_of(config: RunConfig, form: Form) -> Any:
    folder = config.model.pretrained_checkpoint
    options = {"dtype": torch.float32, "attn_implementation": form.attention}
    if folder is not None:
        return AutoModelForCausalLM.from_pretrained(folder, **options)
    torch.manual_seed(config.seed)
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config.model.config), **options)


def build(config: RunConfig, rows: Rows, form: Form, output: str, steps: int | None) -> CountingTrainer:
    prepared, trainer, is_gpu = prepare(config), config.trainer, torch.cuda.is_available()
    tokenizer: PreTrainedTokenizerBase = prepared.tokenizer.tokenizer
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    names = ("input_ids", "labels", "seq_lengths") if form.options else ("input_ids", "labels")
    data, num_rows, per_step = rows, 1, trainer.gradient_accumulation_steps
    if not form.options:
        data = segments(rows)
        per_row = len(data) / len(rows)
        num_rows = max(1, round(per_row / 2))
        per_step = max(1, round(per_step * per_row / num_rows))
    options = SFTConfig(
        output_dir=output,
        max_steps=steps or NEVER,
        per_device_train_batch_size=num_rows,
        gradient_accumulation_steps=per_step,
        train_sampling_strategy="sequential",
        learning_rate=config.optimizer.lr,
        adam_beta1=config.optimizer.betas[0],
        adam_beta2=config.optimizer.betas[1],
        weight_decay=config.optimizer.weight_decay,
        max_grad_norm=trainer.gradient_clipping or 0.0,
        lr_scheduler_type="constant",
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        gradient_checkpointing=False,
        dataloader_num_workers=4 if is_gpu else 0,
        bf16=is_gpu and trainer.mixed_precision == "bf16",
        use_cpu=not is_gpu,
        save_strategy="no",
        logging_steps=1 if steps else 500,
        report_to=[],
        disable_tqdm=True,
        **form.options,
    )
    made = CountingTrainer(
        model=model_of(config, form),
        args=options,
        train_dataset=Dataset.from_dict({name: [_plain(row[name]) for row in data] for name in names}),
        processing_class=tokenizer,
    )
    if form.options:
        made.known = cycle([row["num_tokens"] for row in rows])
    return made


def _plain(values: Any) -> list[int]:
    return values.tolist() if isinstance(values, torch.Tensor) else values


def main() -> None:
    config, rows, form = read_config(Path(sys.argv[1])), torch.load(sys.argv[2]), FORMS[sys.argv[3]]
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else None
    with tempfile.TemporaryDirectory() as output:
        if steps:
            answers = keep_standard_output()
            trainer = build(config, rows, form, output, steps)
            trainer.train()
            losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
            answers.write(json.dumps(losses) + "\n")
            return
        trainer = build(config, rows, form, output, None)
        layers = trainer.model.config.num_hidden_layers
        trainer.add_callback(
            TakingTurns(lambda: Player(lambda: int(trainer.num_tokens), layers, is_peer=True))
        )
        trainer.train()


if __name__ == "__main__":
    main()
