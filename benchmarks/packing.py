"""Fill and speed of packing, and speed of building whole microbatches, on two mixes of document lengths.

    python benchmarks/packing.py [--documents 1048576] [--repeats 5] [--json FILE]

The mixes are lognormal with a median of 150 and of 400 tokens, clipped to 1024; a microbatch holds 16 rows
of 1024. Packing works on lengths alone; building gathers, masks and lays out the tensors as training does.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from neobert.config.schema import RunConfig, TrainerConfig
from neobert.data.batches.masking import MaskingRule
from neobert.data.batches.microbatch import Assembler
from neobert.data.batches.packing import pack
from neobert.data.batches.shape import batch_shape
from neobert.data.batches.windows import Cursor, PreparedWindows
from neobert.data.store.token_store import LengthStatistics, TokenStore

MEDIANS = (150, 400)
SIGMA = 0.85
ROWS, ROW_LENGTH = 16, 1024
VOCAB_SIZE, NUM_SPECIAL = 30_592, 1_000
BUILT_MICROBATCHES = 200


def main() -> None:
    """Measure both mixes and print a line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1 << 20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    figures = [measure(median, arguments.documents, arguments.repeats) for median in MEDIANS]
    for row in figures:
        print(
            f"median {row['median']}: fill {row['fill']:.4f}, up to {row['most_documents']} documents a bin, "
            f"packing {row['packing_tokens_per_second'] / 1e9:.2f} G tokens/s, "
            f"building {row['building_tokens_per_second'] / 1e6:.1f} M tokens/s a thread"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def measure(median: int, num_documents: int, repeats: int) -> dict[str, Any]:
    """Measure one mix; the best of some repeats."""
    lengths = draw_lengths(median, num_documents)
    config = RunConfig(trainer=TrainerConfig(per_device_train_batch_size=ROWS))
    shape = batch_shape(config, ROWS, LengthStatistics.of(lengths)).value
    plan = pack(lengths, shape.capacity, shape.max_segments)
    packing_s = best_time(lambda: pack(lengths, shape.capacity, shape.max_segments), repeats)
    store = draw_store(lengths)
    window = PreparedWindows(store, shape, seed=0).load(Cursor())
    is_maskable = np.arange(VOCAB_SIZE) >= NUM_SPECIAL
    rule = MaskingRule(0.2, False, NUM_SPECIAL - 1, np.flatnonzero(is_maskable), is_maskable)
    assembler = Assembler(shape, rule, seed=0, pad_id=0, vocab_size=len(rule.is_maskable))
    built = range(min(BUILT_MICROBATCHES, len(window)))

    def build() -> None:
        for index in built:
            assembler.build(store, window.members(index), 0, 0, Cursor())

    return {
        "median": median,
        "mean": float(lengths.mean()),
        "fill": plan.fill,
        "most_documents": int(np.diff(plan.offsets).max()),
        "packing_tokens_per_second": plan.num_tokens / packing_s,
        "building_tokens_per_second": len(built) * shape.capacity * plan.fill / best_time(build, repeats),
    }


def draw_lengths(median: int, num_documents: int) -> np.ndarray:
    """Draw document lengths of a mix."""
    drawn = np.random.default_rng(0).lognormal(np.log(median), SIGMA, num_documents)
    return np.clip(drawn, 3, ROW_LENGTH).astype(np.int64)


def draw_store(lengths: np.ndarray) -> TokenStore:
    """Fill documents with random tokens."""
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    tokens = np.random.default_rng(1).integers(NUM_SPECIAL, VOCAB_SIZE, offsets[-1], dtype=np.uint16)
    return TokenStore(tokens, offsets, LengthStatistics.of(lengths))


def best_time(job: Callable[[], Any], repeats: int) -> float:
    """Return the shortest of some runs in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
