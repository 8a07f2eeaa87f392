"""Request of a prediction job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of a job; None selects the setting of the run, or the default of the device.

    Attributes:
        folder: exported folder, checkpoint, or run directory.
        texts: file with one row per text.
        output: .csv, .tsv, .jsonl or .parquet file.
        column, pair_column: columns of the text, or of the list of words, and of the second text of a pair.
        every_class: write the probability of each class.
        processes: number of processes; None: one per GPU, or one on the CPU.
        rows_per_shard: rows per saved shard, the most that a killed process predicts again.
    """

    folder: str
    texts: str
    output: str
    column: str | None = None
    pair_column: str | None = None
    max_length: int | None = None
    every_class: bool = False
    dtype: str | None = None
    device: str | None = None
    processes: int | None = None
    rows_per_shard: int = 32_768
