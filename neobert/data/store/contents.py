"""Facts about prepared text before training: its content, and the microbatches of every rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.batches.document_stream import DocumentStream
from neobert.data.batches.streams import Microbatch, TrainStream, count_microbatches
from neobert.data.batches.targets import IGNORED
from neobert.data.sources.incomplete_rows import first_incomplete_rows
from neobert.data.store.checksums import altered_files, manifest_files
from neobert.data.store.pair_counts import pair_counts
from neobert.data.store.prepared_data import PreparedData
from neobert.data.store.segment_store import SegmentStore
from neobert.data.store.token_store import FORMATS, read_manifest
from neobert.data.tokenize.token_agreement import measure_agreement
from neobert.data.tokenize.tokenizers import TokenizerBundle, count_renumbered_in_file
from neobert.errors import ProjectError
from neobert.families.table import initial_weights
from neobert.plan.size import num_processes
from neobert.plan.tokenizer_contents import TOKENIZER
from neobert.runfiles.cache_folder import cache_folder
from neobert.runfiles.chat_template import read_folder_template
from neobert.runfiles.model_folder import folder_of_weights
from neobert.tasks.specs import spec_of

MAX_MICROBATCHES = 64


def describe(config: RunConfig, prepared: PreparedData) -> dict[str, Any]:
    """Return the facts about prepared data, as JSON values."""
    store = prepared.train if isinstance(prepared.train, SegmentStore) else None
    manifest, train = read_manifest(prepared.folder, FORMATS), prepared.report["train"]
    evaluation = prepared.report.get("eval", {})
    altered = altered_files(prepared.folder, manifest_files(manifest), cache_folder(config.dataset))
    stored_max = max_stored_id(prepared, {} if altered else manifest["splits"])
    # With ids beyond the vocabulary no microbatch can be built; only that is reported.
    shares = (
        FirstMicrobatches.from_config(config, prepared)
        if stored_max < prepared.tokenizer.vocab_size
        else FirstMicrobatches([], [])
    )
    masks = MaskCount(prepared.tokenizer, store)
    left_out = _count_left_out_rows(config, train)
    counts_masks = spec_of(config).masks_tokens and config.plugins.masking is None
    for microbatch in shares.alone if counts_masks else ():
        masks.add(_with_masks(microbatch))
    return {
        "folder": str(prepared.folder),
        "fingerprint": prepared.fingerprint,
        "is_stream": store is None,
        "altered_files": altered,
        "tokenizer_digest": prepared.tokenizer.digest,
        "data_tokenizer_digest": manifest["tokenizer_digest"],
        "vocab_size": prepared.tokenizer.vocab_size,
        "max_token_id": max(stored_max, masks.max_id),
        "num_tokens": None if store is None else store.num_tokens,
        "num_eval_tokens": None if prepared.eval is None else prepared.eval.num_tokens,
        "epochs": prepared.report.get("epochs"),
        # Only if the run counts epochs: packing a large text takes time.
        "microbatches": count_microbatches(prepared.train, config) if config.trainer.max_epochs else None,
        "fill": prepared.report["microbatch"].get("fill"),
        "truncation_share": train["truncation_share"],
        "dropped_share": (train["dropped"] + train["too_short"]) / max(1, train["documents"]),
        "rows_without": left_out,
        "first_row_without": first_incomplete_rows(config.dataset, spec_of(config).rows(config), left_out),
        "histogram": train["histogram"],
        "labels": train.get("labels", {}),
        "eval_labels": evaluation.get("labels", {}),
        "scores": score_statistics(prepared.train),
        "eval_scores": score_statistics(prepared.eval),
        "words": train.get("words", {}),
        "eval_words": evaluation.get("words", {}),
        "documents": train["documents"],
        "eval_documents": evaluation.get("documents", 0),
        "eval_copies": evaluation.get("copies_in_training", 0),
        **_compare_weight_tokens(config, prepared.tokenizer),
        "corpora": [
            {"label": label} | {name: each[name] for name in ("share", "tokens", "epochs")}
            for label, each in prepared.report.get("corpora", {}).items()
        ],
        **_describe_conversations(config, prepared),
        "token_ids": measure_agreement(config, prepared.tokenizer),
        "pairs": describe_pairs(config, shares, prepared.report)
        if spec_of(config).predicts == "pairs"
        else {},
        **shares.summary(),
        **masks.summary(),
    }


def _count_left_out_rows(config: RunConfig, counts: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of rows left out, by what they lack (text or label); empty if there are none."""
    if not spec_of(config).reads_table:
        return {}
    number = {"text": counts["empty"], "label": counts.get("left_out", {}).get("label", 0)}
    return {name: each for name, each in number.items() if each}


def describe_pairs(
    config: RunConfig, shares: FirstMicrobatches, report: Mapping[str, Any]
) -> dict[str, float]:
    """Return the facts about the pairs of a step, and about pairs with a text that occurs elsewhere."""
    counts = pair_counts(shares.alone, num_processes(config) * config.trainer.gradient_accumulation_steps)
    train, evaluation = report.get("train", {}), report.get("eval", {})
    if "texts_in_training" in evaluation:
        counts["eval_shared"] = evaluation["texts_in_training"] / max(1, evaluation["documents"])
    if compared := train.get("texts_compared"):
        counts["source_shared"] = train["texts_of_other_sources"] / compared
    return counts


def score_statistics(store: SegmentStore | DocumentStream | None) -> dict[str, float]:
    """Return mean, std, min and max of the scores in a side column; empty if the text has none."""
    if not isinstance(store, SegmentStore):
        return {}
    for name in store.column_names:
        columns = (each for each in store.column(name) if each.dtype.kind == "f")
        if values := [known for each in columns if len(known := each[~np.isnan(each)])]:
            num_scores = sum(map(len, values))
            mean = sum(float(each.sum(dtype=np.float64)) for each in values) / num_scores
            squares = sum(float(np.square(each - mean, dtype=np.float64).sum()) for each in values)
            return {
                "mean": mean,
                "std": (squares / num_scores) ** 0.5,
                "min": min(float(each.min()) for each in values),
                "max": max(float(each.max()) for each in values),
            }
    return {}


def _compare_weight_tokens(config: RunConfig, tokenizer: TokenizerBundle) -> dict[str, int]:
    """Count the tokens of the initial weights, and how many of them have another id, or none, in `tokenizer`.

    Empty if the weights have no readable tokenizer.json.
    """
    weights = initial_weights(config)
    file = None if weights is None else folder_of_weights(Path(weights)) / TOKENIZER
    if file is None or not file.is_file():
        return {}
    try:
        renumbered, num_tokens = count_renumbered_in_file(tokenizer, file)
    except ProjectError:  # a damaged file, which a run that resumes does not read
        return {}
    return {"weights_tokens": num_tokens, "renumbered_tokens": renumbered}


def _describe_conversations(config: RunConfig, prepared: PreparedData) -> dict[str, Any]:
    """Return the facts about the supervised text of conversations; empty for other tasks."""
    train = prepared.report["train"]
    if "conversations" not in train:
        return {}
    weights = initial_weights(config)
    trained = None if weights is None else read_folder_template(folder_of_weights(Path(weights)))
    return {
        "conversations": train["conversations"],
        "num_conversations": train["documents"],
        "sample": prepared.report["sample"],
        "faults": [
            {"split": split, "kind": kind} | fault
            for split in ("train", "eval")
            for kind, fault in prepared.report.get(split, {}).get("faults", {}).items()
        ],
        "is_other_template": trained not in (None, prepared.tokenizer.tokenizer.chat_template),
    }


def max_stored_id(prepared: PreparedData, splits: Mapping[str, Any]) -> int:
    """Return the largest token id of the stored splits; -1 if none is stored.

    Splits whose entry in `splits` does not state the id, as in earlier versions, are read.
    """
    stores = {"train": prepared.train, "eval": prepared.eval}
    return max(
        (
            int(splits[name]["highest_id"] if "highest_id" in splits.get(name, {}) else store.highest_id())
            for name, store in stores.items()
            if isinstance(store, SegmentStore)
        ),
        default=-1,
    )


@dataclass(frozen=True, eq=False)
class FirstMicrobatches:
    """The first microbatches of an epoch, for each of several ranks and for a single process."""

    by_rank: list[list[Microbatch]]
    alone: list[Microbatch]

    @classmethod
    def from_config(cls, config: RunConfig, prepared: PreparedData) -> FirstMicrobatches:
        """Read the same number of microbatches for every rank, and their total for a single process."""
        world_size = num_processes(config)
        rounds = max(1, MAX_MICROBATCHES // world_size)
        by_rank = [
            list(_first_microbatches(config, prepared, rank, world_size, rounds))
            for rank in range(world_size)
        ]
        rounds = min(map(len, by_rank))
        alone = list(_first_microbatches(config, prepared, 0, 1, max(1, rounds * world_size)))
        return cls([share[:rounds] for share in by_rank], alone)

    def summary(self) -> dict[str, Any]:
        """Return the number of repeated and missing samples over all ranks, and the ranks without tokens."""
        got = Counter(sample for share in self.by_rank for batch in share for sample in _sample_ids(batch))
        expected = (
            {sample for batch in self.alone for sample in _sample_ids(batch)} if any(self.by_rank) else set()
        )
        return {
            "sampled_microbatches": sum(map(len, self.by_rank)),
            "repeated_samples": sum(count - 1 for count in got.values()),
            "missing_samples": len(expected - got.keys()),
            "empty_ranks": [
                rank
                for rank, share in enumerate(self.by_rank)
                if not any(batch.num_tokens for batch in share)
            ],
        }


def _first_microbatches(
    config: RunConfig, prepared: PreparedData, rank: int, world_size: int, rounds: int
) -> Iterator[Microbatch]:
    """Yield a rank's microbatches of the first rounds, within the first epoch."""
    with TrainStream(prepared, config, prepared.tokenizer, rank, world_size) as stream:
        for batch in islice(stream, rounds):
            if batch.cursor.epoch > 0:
                return
            yield batch


def _sample_ids(batch: Microbatch) -> list[int]:
    return batch.sample_ids.tolist()


def _with_masks(batch: Microbatch) -> Microbatch:
    """Return a microbatch with the masked ids as inputs and their labels; unchanged without masks."""
    if batch.masked_ids is None or batch.masked_labels is None:
        return batch
    return replace(batch, input_ids=batch.masked_ids, labels=batch.masked_labels)


class MaskCount:
    """Counts of masked tokens in the sampled microbatches."""

    def __init__(self, tokenizer: TokenizerBundle, store: SegmentStore | None) -> None:
        self._is_maskable = torch.from_numpy(np.asarray(tokenizer.is_maskable))
        self._store = store
        self.max_id = self._maskable = self._targets = self._special = self._padding = self._wrong = 0

    def add(self, batch: Microbatch) -> None:
        """Add the tokens, targets and wrong labels of one microbatch."""
        is_token = _text_mask(batch)
        labels, ids = batch.labels.flatten(), batch.input_ids.flatten()
        is_target = labels != IGNORED
        original = torch.where(is_target, labels, ids)
        self.max_id = max(self.max_id, int(original.max()))
        self._targets += int(is_target.sum())
        self._padding += int((is_target & ~is_token).sum())
        known = original.clamp(max=len(self._is_maskable) - 1)
        self._special += int((is_target & ~self._is_maskable[known]).sum())
        self._maskable += int((is_token & self._is_maskable[known]).sum())
        if self._store is not None:
            self._wrong += int(
                (original[is_token] != torch.from_numpy(_original_ids(batch, self._store))).sum()
            )

    def summary(self) -> dict[str, Any]:
        """Return the counts, and the share of the maskable tokens that are targets."""
        return {
            "num_maskable": self._maskable,
            "masked_share": self._targets / max(1, self._maskable),
            "special_targets": self._special,
            "padding_targets": self._padding,
            "wrong_labels": self._wrong,
        }


def _text_mask(batch: Microbatch) -> torch.Tensor:
    """Return the mask of the positions that hold text, flattened."""
    if batch.attention_mask is not None:
        return batch.attention_mask.flatten() if batch.num_tokens else torch.zeros(1, dtype=torch.bool)
    return torch.arange(batch.input_ids.numel()) < batch.num_tokens


def _original_ids(batch: Microbatch, store: SegmentStore) -> NDArray[np.int64]:
    """Return the original token ids of a microbatch, read from the store again, int64 [num_tokens]."""
    segments = batch.sample_ids.numpy() % store.num_segments  # each pass over a mixture has its own ids
    pieces = [store.segment(number) for number in segments]
    return np.concatenate(pieces).astype(np.int64) if pieces else np.empty(0, dtype=np.int64)
