"""`transformers.Trainer` on labelled texts: `python -m peers.fine_tuned RESOLVED.json TEXTS`.

The last line of its output is JSON: accuracies on dev.tsv, and seconds of the steps. With `--profile` it
takes a few steps more and adds the kernels of one and the seconds that this took; dense attention ends the
program. With `--without-cudnn` torch chooses among its other kernels.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from neobert.config.schema import RunConfig
from neobert.train import read_config
from peers.kernels import require_fused_attention, summary
from peers.profiled import Profiled

PROFILED_STEP = 6
PROFILE, WITHOUT_CUDNN = "--profile", "--without-cudnn"


def read_texts(path: Path, tokenizer: Any, length: int) -> list[dict[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    ids = tokenizer([row["sentence"] for row in rows], truncation=True, max_length=length)["input_ids"]
    return [{"input_ids": each, "labels": int(row["label"])} for each, row in zip(ids, rows, strict=True)]


class Clock(TrainerCallback):
    """Times the steps."""

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == 0:
            self.begun_s = time.perf_counter()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.seconds = time.perf_counter() - self.begun_s


def arguments(config: RunConfig, folder: str, steps: int) -> TrainingArguments:
    """Return the batch, recipe and evaluations of the run; rows of a batch have similar lengths."""
    is_gpu, trainer, optimizer = torch.cuda.is_available(), config.trainer, config.optimizer
    return TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=trainer.per_device_train_batch_size,
        per_device_eval_batch_size=trainer.per_device_eval_batch_size,
        learning_rate=optimizer.lr,
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        lr_scheduler_type=config.scheduler.name,
        warmup_steps=round(config.scheduler.warmup_percent / 100 * steps),
        bf16=is_gpu,
        use_cpu=not is_gpu,
        eval_strategy="steps",
        eval_steps=trainer.eval_steps,
        save_steps=trainer.save_steps,
        save_total_limit=trainer.save_total_limit,
        logging_steps=trainer.logging_steps,
        train_sampling_strategy="group_by_length",
        dataloader_num_workers=4 if is_gpu else 0,
        seed=config.seed,
        report_to=[],
        disable_tqdm=True,
    )


def main() -> None:
    config, texts, options = read_config(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3:]
    torch.backends.cuda.enable_cudnn_sdp(WITHOUT_CUDNN not in options)
    folder, length = config.model.pretrained_checkpoint, config.dataset.max_seq_length
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(config.seed)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, num_labels=2)
    clock = Clock()
    with tempfile.TemporaryDirectory() as output:
        trainer = Trainer(
            model=model,
            args=arguments(config, output, config.trainer.max_steps),
            train_dataset=read_texts(texts / "train.tsv.gz", tokenizer, length),
            eval_dataset=read_texts(texts / "dev.tsv", tokenizer, length),
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=lambda seen: {"accuracy": float((seen[0].argmax(-1) == seen[1]).mean())},
            callbacks=[clock],
        )
        trainer.train()
        accuracies = [row["eval_accuracy"] for row in trainer.state.log_history if "eval_accuracy" in row]
        found = {"accuracy": accuracies[-1], "accuracies": accuracies}
        found["seconds_of_steps"] = round(clock.seconds, 2)
        if PROFILE in options:
            found |= profile(trainer)
    print(json.dumps(found))


def profile(trainer: Trainer) -> dict[str, Any]:
    """Take a few steps more; return the kernels of one, and the seconds of all."""
    started_s, profiled = time.perf_counter(), Profiled(PROFILED_STEP)
    trainer.add_callback(profiled)
    trainer.args.max_steps = PROFILED_STEP + 2
    trainer.train()
    if torch.cuda.is_available():  # a CPU has no fused kernel with dropout
        require_fused_attention(profiled.kernels, trainer.model.config.num_hidden_layers)
    return {"kernels": summary(profiled.kernels), "profile_s": time.perf_counter() - started_s}


if __name__ == "__main__":
    main()
