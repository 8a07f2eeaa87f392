"""`transformers.Trainer` as a contender: `python -m peers.trainer_arm RESOLVED.json MODEL FORM`.

It continues the model in the folder MODEL on the segments that the run RESOLVED has prepared, with its share
of masked tokens, its rate, and about its useful tokens per optimizer step (`FORMS`).

B rows, S row length, T tokens of a step
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset
from transformers import (
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from neobert.config.schema import RunConfig
from neobert.data.store.prepare import prepare
from neobert.data.store.prepared_data import PreparedData
from neobert.train import read_config
from peers.attention import segment_bounds
from peers.batches import IGNORED, MULTIPLE, packed_row
from peers.turn_taking import TurnTaker

ROWS = 32 if torch.cuda.is_available() else 4
"""Padded rows of a microbatch."""
NEVER = 10**6


class TrainerArmSettings(NamedTuple):
    """Settings of the peer's training.

    Attributes:
        attention: name of transformers' attention function.
        is_packed: a step is one row of documents with their bounds, as `DataCollatorWithFlattening` makes it,
            always of T tokens; else rows are padded to the longest of their microbatch.
    """

    attention: str
    is_packed: bool = False
    is_grouped: bool = False
    is_compiled: bool = False


FORMS = {
    "default": TrainerArmSettings("sdpa"),
    "grouped, compiled": TrainerArmSettings("sdpa", is_grouped=True, is_compiled=True),
    "packed, compiled": TrainerArmSettings("bench_varlen", is_packed=True, is_compiled=True),
    "packed, flash_attention_4": TrainerArmSettings("flash_attention_4", is_packed=True),
}
"""`default` has only the required arguments; the others decode masked tokens only, do not wait for the
loss of every step, and load batches in other processes."""


class TokenDocuments(Dataset):
    """Dataset with one prepared segment per row."""

    def __init__(self, prepared: PreparedData) -> None:
        self.store, special = prepared.train, prepared.tokenizer.tokenizer.all_special_ids
        self.special = torch.tensor(special)

    def __len__(self) -> int:
        return self.store.num_segments

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= len(self):
            raise IndexError(index)  # the sampler by length iterates over a data set
        first, last = self.store.offsets[index : index + 2]
        ids = torch.from_numpy(self.store.tokens[first:last].astype("int64"))
        return {"input_ids": ids, "special_tokens_mask": torch.isin(ids, self.special).long()}


class PackedRows(TokenDocuments):
    """Dataset of packed rows: T tokens of the prepared text with their document boundaries."""

    def __init__(self, prepared: PreparedData, num_tokens: int) -> None:
        super().__init__(prepared)
        self.num_tokens = num_tokens

    def __len__(self) -> int:
        return self.store.num_tokens // self.num_tokens

    @property
    def max_documents(self) -> int:
        return max(len(packed_row(self.store, index, self.num_tokens)[1]) for index in range(len(self)))

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids, lengths = packed_row(self.store, index, self.num_tokens)
        return {"input_ids": ids, "lengths": lengths, "special_tokens_mask": torch.isin(ids, self.special)}


class PaddingCollator:
    """Collator that pads rows, based on the transformers collator."""

    def __init__(self, tokenizer: Any, share: float) -> None:
        self.collate = DataCollatorForLanguageModeling(
            tokenizer, mlm_probability=share, pad_to_multiple_of=MULTIPLE
        )

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        num_tokens = sum(len(row["input_ids"]) for row in rows)
        return {**self.collate(list(rows)), "num_tokens": num_tokens}


class PackingCollator:
    """Collator of one packed row. A fixed number of tokens is masked, to avoid recompilation.

    With `num_slots`, every row has this number of documents; the last ones may be empty.
    """

    def __init__(self, tokenizer: Any, share: float, longest: int, num_slots: int | None) -> None:
        self.share, self.longest, self.num_slots = share, longest, num_slots
        self.mask_id, self.vocabulary = tokenizer.mask_token_id, len(tokenizer)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        (row,) = rows
        ids, lengths = row["input_ids"], row["lengths"]
        places = (~row["special_tokens_mask"]).nonzero().squeeze(1)
        chosen = places[torch.randperm(len(places))[: int(self.share * len(ids))]]
        labels = torch.full_like(ids, IGNORED)
        labels[chosen] = ids[chosen]
        inputs, tenth = ids.clone(), len(chosen) // 10
        inputs[chosen[: 8 * tenth]] = self.mask_id
        inputs[chosen[8 * tenth : 9 * tenth]] = torch.randint(self.vocabulary, (tenth,))
        bounds = segment_bounds(lengths, len(ids), "cpu", self.num_slots)
        return {
            "input_ids": inputs[None],
            "labels": labels[None],
            "position_ids": torch.cat([torch.arange(length) for length in lengths])[None],
            **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), bounds),
            **dict.fromkeys(("max_length_q", "max_length_k"), self.longest),
            "num_tokens": len(ids),
        }


class CountingTrainer(Trainer):
    """Trainer that counts non-padding tokens."""

    num_tokens = 0

    def training_step(self, model: Any, inputs: dict[str, Any], *more: Any, **named: Any) -> torch.Tensor:
        self.num_tokens += int(inputs.pop("num_tokens"))
        return super().training_step(model, inputs, *more, **named)


class TurnTakingCallback(TrainerCallback):
    """Callback that waits for a turn before the first step and after the last step of each turn."""

    def __init__(self, make_player: Callable[[], TurnTaker]) -> None:
        self.make_player = make_player

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.player = self.make_player()
        self.player.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.player.steps_ended()


def training_arguments(
    config: RunConfig, form: TrainerArmSettings, accumulated: int, folder: str
) -> TrainingArguments:
    is_gpu, is_default = torch.cuda.is_available(), form == FORMS["default"]
    best = {
        "train_sampling_strategy": "group_by_length" if form.is_grouped else "random",
        "torch_compile": form.is_compiled and is_gpu,
        "logging_nan_inf_filter": False,
        "dataloader_num_workers": 4 if is_gpu else 0,
        "tf32": True if is_gpu else None,
    }
    return TrainingArguments(
        output_dir=folder,
        max_steps=NEVER,
        per_device_train_batch_size=1 if form.is_packed else ROWS,
        gradient_accumulation_steps=accumulated,
        learning_rate=config.optimizer.lr,
        bf16=is_gpu,
        use_cpu=not is_gpu,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        **({} if is_default else best),
    )


def build_trainer(config: RunConfig, folder: Path, form: TrainerArmSettings, output: str) -> CountingTrainer:
    prepared = prepare(config)
    tokenizer, share = prepared.tokenizer.tokenizer, config.datacollator.mlm_probability
    num_tokens = config.trainer.per_device_train_batch_size * config.dataset.max_seq_length
    if form.is_packed:
        dataset: TokenDocuments = (rows := PackedRows(prepared, num_tokens))
        num_slots = rows.max_documents if form.is_compiled else None
        collate: Any = PackingCollator(tokenizer, share, config.dataset.max_seq_length, num_slots)
        accumulated = 1
    else:
        dataset, collate = TokenDocuments(prepared), PaddingCollator(tokenizer, share)
        accumulated = max(1, round(num_tokens / (ROWS * prepared.train.statistics.mean)))
    more = {} if form == FORMS["default"] else {"sparse_prediction": True}
    model: PreTrainedModel = AutoModelForMaskedLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=form.attention, **more
    )
    return CountingTrainer(
        model=model,
        args=training_arguments(config, form, accumulated, output),
        train_dataset=dataset,
        data_collator=collate,
    )


def main() -> None:
    resolved, folder, name = sys.argv[1:]
    form = FORMS[name]
    if form.is_grouped:
        os.environ["ACCELERATE_DYNAMO_USE_DYNAMIC"] = "true"  # one compilation for rows of all lengths
    with tempfile.TemporaryDirectory() as output:
        trainer = build_trainer(read_config(Path(resolved)), Path(folder), form, output)
        layers = trainer.model.config.num_hidden_layers
        trainer.add_callback(
            TurnTakingCallback(lambda: TurnTaker(lambda: trainer.num_tokens, layers, is_peer=True))
        )
        trainer.train()


if __name__ == "__main__":
    main()
