"""Encoding of one process's shards of a job."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.encoding.encoder import Encoder
from neobert.encoding.passages import Passages
from neobert.encoding.placement import device_for_rank
from neobert.encoding.request import Request
from neobert.encoding.shards import Shards
from neobert.encoding.texts import open_texts
from neobert.progress import Progress


@dataclass(frozen=True, slots=True)
class ShareResult:
    """Result of one process of the job.

    Attributes:
        num_shards: shards of the whole job.
        tokens: tokens that this process encoded in this session.
        seconds: encoding time, without loading the model.
    """

    num_shards: int
    hidden_size: int
    settings: dict[str, Any]
    tokens: int
    seconds: float


def encode_share(request: Request, rank: int, size: int) -> ShareResult:
    """Encode the missing shards with the numbers `rank`, `rank + size`, `rank + 2 * size`, ...

    `request.folder` is a verified model folder, not a run directory. Raises `ProjectError` for unusable texts
    or weights, and if a shard cannot be written.
    """
    shards, device = Shards(Path(request.output)), device_for_rank(rank, size, request.device)
    encoder = Encoder.load(
        request.folder,
        pooling=request.pooling,
        normalize=request.normalize,
        max_length=request.max_length,
        device=device,
        dtype=request.dtype,
        tokens_per_run=request.tokens_per_run,
        prompt=request.prompt_text,
        is_verified=True,
    )
    texts = open_texts(Path(request.texts), request.column, request.split)
    passages = None
    if request.is_index:
        passages = Passages(texts, encoder.tokenizer, encoder.prompt, request.max_length)
    started_s = time.perf_counter()
    # Of several processes, each encodes some of the shards; the number of passages is not known.
    total = texts.known_count() if size == 1 and passages is None else None
    place = "" if size == 1 else f" in process {rank + 1} of {size}"
    progress = Progress(f"encoding{place}", "passages" if passages else "texts", total)
    num_shards, done = shards.write_missing(
        passages or texts, request.texts_per_shard, encoder, encoder.encode, progress, (rank, size)
    )
    settings = {
        "pooling": encoder.pooling,
        "normalized": encoder.normalizes,
        "max_length": encoder.tokenizer.max_length,
        "prompt": encoder.prompt,
        "device": str(encoder.model.device),
        "kernels": encoder.model.kernels,
    }
    seconds = time.perf_counter() - started_s
    return ShareResult(num_shards, encoder.model.hidden_size, settings, done.tokens, seconds)
