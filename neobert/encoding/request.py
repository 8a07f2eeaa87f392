"""Arguments of a job that encodes texts."""

from __future__ import annotations

from dataclasses import dataclass

EMBEDDINGS = "embeddings.npy"
"""File of the embeddings in the folder of an index."""


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of a job; None selects the folder's setting, or the default of the device.

    Attributes:
        output: .npy, .parquet or .jsonl file; for an index, `EMBEDDINGS` in its folder.
        is_index: also save the texts next to `output`, for `search`.
        prompt: name of the prompt before each text; None: the folder's default, or for an index its
            document prompt.
        prompt_text: text of the prompt, which takes precedence over `prompt`.
        split: split to read from a folder or dataset.
        processes: number of processes; None: one per GPU, or one on the CPU.
        texts_per_shard: texts per saved shard, the most that a killed process encodes again.
    """

    folder: str
    texts: str
    output: str
    is_index: bool = False
    column: str | None = None
    prompt: str | None = None
    prompt_text: str | None = None
    split: str = "train"
    pooling: str | None = None
    normalize: bool | None = None
    max_length: int | None = None
    dtype: str | None = None
    device: str | None = None
    tokens_per_run: int | None = None
    processes: int | None = None
    texts_per_shard: int = 32_768
