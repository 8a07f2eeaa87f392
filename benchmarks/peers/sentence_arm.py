"""SentenceTransformerTrainer as a contender: `python -m peers.sentence_arm RESOLVED.json PAIRS.jsonl FORM`.

It trains the model of a run on the same pairs with in-batch negatives, with as many pairs to a step on
average, and with the run's rate and temperature; weights are in fp32 under autocast. Unpadded forms take the
path that sentence-transformers has for a FlashAttention of transformers: on torch's varlen kernel, which is
FlashAttention 2, or on FlashAttention 4.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers.utils import generic

from neobert.config.schema import RunConfig
from neobert.data.store.prepare import prepare
from neobert.tasks.contrastive.section import CONTRASTIVE
from neobert.train import read_config
from peers.attention import flatten_inputs
from peers.trainer_arm import NEVER, TurnTakingCallback
from peers.turn_taking import TurnTaker

# Its processes that load data are forked after it has tokenized examples for the model card: they would wait
# for ever for the threads of a tokenizer that runs in parallel.
os.environ["TOKENIZERS_PARALLELISM"] = "false"


class SentenceArmSettings(NamedTuple):
    """Settings of the peer: attention function, batching of texts, compilation."""

    attention: str
    is_unpadded: bool = False
    is_sorted: bool = False
    is_compiled: bool = False


FORMS = {
    "default": SentenceArmSettings("sdpa"),
    "sorted": SentenceArmSettings("sdpa", is_sorted=True),
    "sorted, compiled": SentenceArmSettings("sdpa", is_sorted=True, is_compiled=True),
    "unpadded": SentenceArmSettings("bench_varlen", is_unpadded=True),
    "unpadded, compiled": SentenceArmSettings("bench_varlen", is_unpadded=True, is_compiled=True),
    "unpadded, flash_attention_4, compiled": SentenceArmSettings(
        "bench_fa4", is_unpadded=True, is_compiled=True
    ),
}
"""`default` has only the required arguments; the others do not wait for the loss of every step, nor for
new loading processes in every epoch."""


class SameLengthBatches(DefaultBatchSampler):
    """Sampler for data sorted by length: consecutive pairs form a batch; batches come in random order."""

    def __iter__(self) -> Iterator[list[int]]:
        count = len(self.sampler) // self.batch_size
        for number in torch.randperm(count, generator=self.generator).tolist():
            yield list(range(number * self.batch_size, (number + 1) * self.batch_size))


class CountingTrainer(SentenceTransformerTrainer):
    """Trainer that counts non-padding tokens."""

    num_tokens: int | torch.Tensor = 0

    def compute_loss(self, model: Any, inputs: dict[str, Any], *more: Any, **named: Any) -> Any:
        masks = [value for name, value in inputs.items() if name.endswith("attention_mask")]
        ids = [value for name, value in inputs.items() if name.endswith("input_ids")]
        found = [each.sum() for each in masks] if masks else [each.numel() for each in ids]
        self.num_tokens = self.num_tokens + sum(found)
        return super().compute_loss(model, inputs, *more, **named)


def build_model(config: RunConfig, form: SentenceArmSettings) -> SentenceTransformer:
    options = {"attn_implementation": form.attention, "dtype": torch.float32}
    folder = str(config.model.pretrained_checkpoint)
    model = SentenceTransformer(folder, trust_remote_code=True, model_kwargs=options)
    module = model[0]
    model.max_seq_length = config.dataset.max_seq_length
    if form.is_unpadded and not module.can_flatten_inputs:  # an attention function that is registered here
        generic.is_flash_attention_requested = lambda *_, **__: True
        flatten_inputs(module)
    if form.is_compiled:  # once for all lengths; it calls `forward`, which nn.Module.compile does not replace
        module.model.forward = torch.compile(module.model.forward, dynamic=True)
    return model


def build_trainer(config: RunConfig, file: Path, form: SentenceArmSettings, output: str) -> CountingTrainer:
    is_gpu, trainer, section = torch.cuda.is_available(), config.trainer, CONTRASTIVE.read_section(config)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    pairs = [{name: row[name] for name in ("query", "positive")} for row in rows]
    if form.is_sorted:
        pairs.sort(key=lambda pair: len(pair["query"]) + len(pair["positive"]))
    room = trainer.per_device_train_batch_size * config.dataset.max_seq_length
    model = build_model(config, form)
    return CountingTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=output,
            max_steps=NEVER,
            per_device_train_batch_size=round(room / prepare(config).train.statistics.mean),
            learning_rate=config.optimizer.lr,
            weight_decay=config.optimizer.weight_decay,
            batch_sampler=SameLengthBatches if form.is_sorted else "batch_sampler",
            dataloader_drop_last=True,
            dataloader_num_workers=8 if is_gpu else 0,
            dataloader_persistent_workers=is_gpu and form != FORMS["default"],
            bf16=is_gpu and trainer.mixed_precision == "bf16",
            use_cpu=not is_gpu,
            save_strategy="no",
            logging_steps=500,
            logging_nan_inf_filter=form == FORMS["default"],
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(pairs),
        loss=MultipleNegativesRankingLoss(model, scale=1 / section.temperature),
    )


def main() -> None:
    config, file, form = read_config(Path(sys.argv[1])), Path(sys.argv[2]), FORMS[sys.argv[3]]
    with tempfile.TemporaryDirectory() as output:
        trainer = build_trainer(config, file, form, output)
        layers = trainer.model[0].config.num_hidden_layers
        trainer.add_callback(
            TurnTakingCallback(lambda: TurnTaker(lambda: int(trainer.num_tokens), layers, is_peer=True))
        )
        trainer.train()


if __name__ == "__main__":
    main()
