"""A job that encodes texts to a file, resumable, with one process per GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from neobert.data.sources.file_digests import digest_of_ends
from neobert.encoding.encoder import Encoder
from neobert.encoding.shards import NPY, PARQUET, Shards
from neobert.encoding.texts import Texts, open_texts, whole_digest
from neobert.encoding.tokens import TextCounts
from neobert.errors import EXIT_TRAINING_FAILED, EXIT_USAGE, ProjectError
from neobert.progress import Progress, report_to_launcher
from neobert.runfiles.model_folder import model_folder
from neobert.worker_pool import worker_pool


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of a job; None selects the folder's setting, or the default of the device.

    Attributes:
        output: .npy or .parquet file.
        split: split of a dataset.
        processes: None: one per GPU, or one.
        texts_per_shard: texts per saved shard, the most that a killed process encodes again.
    """

    folder: str
    texts: str
    output: str
    column: str | None = None
    split: str = "train"
    pooling: str | None = None
    normalize: bool | None = None
    max_length: int | None = None
    dtype: str | None = None
    tokens_per_run: int | None = None
    processes: int | None = None
    texts_per_shard: int = 32_768


@dataclass(frozen=True, slots=True)
class Share:
    """Result of one process of the job.

    Attributes:
        num_shards: shards of the whole job.
        tokens: tokens that this process encoded, without those of earlier sessions.
    """

    num_shards: int
    hidden_size: int
    settings: dict[str, Any]
    tokens: int
    seconds: float


def run(request: Request) -> dict[str, Any]:
    """Encode the missing shards, write the output and return a report. Raises `ProjectError`."""
    output = Path(request.output)
    if output.suffix not in (NPY, PARQUET):
        message, hint = (
            f"--output {output.name} does not end in {NPY} or {PARQUET}",
            f"choose a file name that ends in {NPY} or {PARQUET}",
        )
        raise ProjectError("encode-output", message, hint, str(output), EXIT_USAGE)
    texts = open_texts(Path(request.texts), request.column, request.split)
    shards = Shards(output)
    with shards.begin(_identity(request, texts)):
        return _encode_all(request, shards)


def _encode_all(request: Request, shards: Shards) -> dict[str, Any]:
    size = request.processes or max(1, torch.cuda.device_count())
    shares = _shares(request, size)
    first = shares[0]
    if not first.num_shards:
        raise ProjectError(
            "encode-texts", "contains no texts", "use a file with text", request.texts, EXIT_USAGE
        )
    counts = shards.counts(first.num_shards)
    shards.merge(first.num_shards, first.hidden_size)
    seconds = max(share.seconds for share in shares)
    return {
        "output": str(shards.output),
        "embeddings": [counts.texts, first.hidden_size],
        **asdict(counts),
        **first.settings,
        "processes": size,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(sum(share.tokens for share in shares) / seconds) if seconds else None,
    }


def _identity(request: Request, texts: Texts) -> dict[str, Any]:
    """Return the inputs that determine the embeddings, as JSON values."""
    settings = asdict(request)
    for name in ("folder", "texts", "output", "processes"):
        del settings[name]
    return {"texts": texts.identity(), **model_identity(Path(request.folder)), **settings}


def model_identity(path: Path) -> dict[str, Any]:
    """Return sizes and digests of the model files that determine its outputs."""
    folder = model_folder(path)
    declared = (
        "config.json", "modules.json", "tokenizer.json", "1_Pooling/config.json", "sentence_bert_config.json",
    )  # fmt: skip
    return {
        "weights": [[file.name, file.stat().st_size, digest_of_ends(file)] for file in _weights(folder)],
        "model files": [whole_digest(folder / name) for name in declared if (folder / name).is_file()],
    }


def _weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _shares(request: Request, size: int) -> list[Share]:
    if size == 1:
        return [encode_share(request, 0, 1)]
    try:
        with worker_pool(size, report_to_launcher) as ranks:
            return list(ranks.map(encode_share, [request] * size, range(size), [size] * size))
    except BrokenProcessPool as error:
        message = "a process was killed, probably because memory ran out"
        hint = "lower --processes or --max-length; the same command continues the job"
        raise ProjectError("encode-killed", message, hint, exit_code=EXIT_TRAINING_FAILED) from error


def encode_share(request: Request, rank: int, size: int) -> Share:
    """Encode the missing shards among rank, rank + size, rank + 2 size, ..."""
    shards, device = Shards(Path(request.output)), _device(rank, size)
    encoder = Encoder.load(
        request.folder,
        pooling=request.pooling,
        normalize=request.normalize,
        max_length=request.max_length,
        device=device,
        dtype=request.dtype,
        tokens_per_run=request.tokens_per_run,
    )
    texts = open_texts(Path(request.texts), request.column, request.split)
    started_s, number, done = time.perf_counter(), -1, TextCounts()
    # Of several processes, each encodes some of the shards.
    total = texts.known_count() if size == 1 else None
    place = "" if size == 1 else f" in process {rank + 1} of {size}"
    progress = Progress(f"encoding{place}", "texts", total)
    for number, group in enumerate(_groups(texts, request.texts_per_shard)):
        if number % size != rank:
            continue
        if shards.has(number):
            progress.skip(len(group))
            continue
        encoder.counts = TextCounts()
        embeddings = encoder.encode(group, progress.advance)
        shards.write(number, embeddings, encoder.counts)
        done.add(encoder.counts)
    settings = {
        "pooling": encoder.pooling,
        "normalized": encoder.normalizes,
        "max_length": encoder.tokenizer.max_length,
        "device": str(encoder.model.device),
        "kernels": encoder.model.kernels,
    }
    seconds = time.perf_counter() - started_s
    return Share(number + 1, encoder.model.hidden_size, settings, done.tokens, seconds)


def _device(rank: int, size: int) -> str:
    if torch.cuda.is_available():
        return f"cuda:{rank % torch.cuda.device_count()}"
    torch.set_num_threads(max(1, torch.get_num_threads() // size))
    return "cpu"


def _groups(texts: Texts, size: int) -> Iterator[list[str]]:
    reader = iter(texts)
    while group := list(islice(reader, size)):
        yield group
