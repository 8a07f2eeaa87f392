"""Statistics of prepared data: counts, lengths, fill, epochs, copies of evaluation documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from neobert.config.schedules import microbatches_before
from neobert.config.schema import RunConfig
from neobert.data.batches.mixture import MixedText
from neobert.data.batches.packing import pack_evenly
from neobert.data.batches.shape import BatchShape
from neobert.data.batches.windows import MeasuredText
from neobert.data.store.segment_store import LengthStatistics, SegmentStore
from neobert.data.tokenize.encoding import Counts
from neobert.plan.derived import Derived
from neobert.plan.size import num_processes

OPTIONAL_COUNTS = ("one_sided", "labels", "words", "conversations", "stops", "faults", "left_out")


def split_report(label: str, counts: Counts) -> dict[str, Any]:
    """Return the counts of a split's documents, segments and tokens."""
    report = {"source": label, **asdict(counts), "truncation_share": round(counts.truncation_share, 6)}
    # [maximum length, number of documents] of each non-empty bin
    report["histogram"] = [[1 << power, count] for power, count in enumerate(counts.histogram) if count]
    return {name: value for name, value in report.items() if name not in OPTIONAL_COUNTS or value}


def shape_report(shape: Derived[BatchShape], statistics: LengthStatistics) -> dict[str, Any]:
    """Return the tokens and slots of a microbatch, how they were derived, and segment length statistics."""
    return {
        "tokens": shape.value.capacity,
        "slots": shape.value.num_slots,
        "reason": shape.reason,
        "segment_length": {name: round(value, 2) for name, value in asdict(statistics).items()},
    }


def measure_fill(store: MeasuredText, shape: BatchShape) -> float:
    """Return the share of the microbatches' positions that hold tokens, measured on a sample of examples."""
    lengths = store.sample_lengths()
    if shape.is_packed:
        return round(pack_evenly(lengths, shape.capacity, shape.max_examples).fill, 4)
    whole = lengths[: len(lengths) // shape.max_examples * shape.max_examples]
    rows = (whole if len(whole) else lengths).reshape(-1, min(shape.max_examples, len(lengths)))
    return round(float(rows.sum() / (rows.max(axis=1) * rows.shape[1]).sum()), 4)


def count_tokens_to_read(
    config: RunConfig, text: SegmentStore | MixedText, shape: BatchShape, fill: float
) -> float:
    """Return the number of tokens that the run reads in `max_steps` or, if fewer, in `max_epochs`."""
    trainer = config.trainer
    microbatches = microbatches_before(trainer.max_steps, trainer) * num_processes(config)
    tokens_in_rows = shape.max_examples * text.statistics.mean
    tokens = microbatches * (shape.capacity * fill if shape.is_packed else tokens_in_rows)
    return tokens if trainer.max_epochs is None else min(tokens, trainer.max_epochs * text.num_tokens)
