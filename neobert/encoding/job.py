"""A job that encodes texts to a file, resumable, with one process per GPU."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neobert.encoding.request import Request
from neobert.encoding.shards import NPY, PARQUET, Shards
from neobert.encoding.texts import Texts, open_texts
from neobert.errors import EXIT_TRAINING_FAILED, EXIT_USAGE, ProjectError
from neobert.progress import report_to_launcher
from neobert.runfiles.model_folder import model_folder
from neobert.worker_pool import worker_pool

if TYPE_CHECKING:
    from neobert.encoding.share import Share


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
    if next(iter(texts), None) is None:
        raise ProjectError(
            "encode-texts", "contains no texts", "use a file with text", request.texts, EXIT_USAGE
        )
    request = replace(request, folder=str(model_folder(Path(request.folder))))
    shards = Shards(output)
    with shards.begin(_identity(request, texts)):
        return {"source": texts.label, **_encode_all(request, shards)}


def _encode_all(request: Request, shards: Shards) -> dict[str, Any]:
    shares = _shares(request)
    first = shares[0]
    counts = shards.counts(first.num_shards)
    shards.merge(first.num_shards, first.hidden_size)
    seconds = max(share.seconds for share in shares)
    return {
        "output": str(shards.output),
        "embeddings": [counts.texts, first.hidden_size],
        **asdict(counts),
        **first.settings,
        "processes": len(shares),
        "seconds": round(seconds, 3),
        "tokens_per_s": round(sum(share.tokens for share in shares) / seconds) if seconds else None,
    }


def _identity(request: Request, texts: Texts) -> dict[str, Any]:
    """Return the inputs that determine the embeddings, as JSON values."""
    from neobert.encoding.placement import model_identity  # imports torch, which takes seconds

    settings = asdict(request)
    for name in ("folder", "texts", "output", "processes", "dtype"):
        del settings[name]
    return {
        "texts": texts.identity(),
        **model_identity(Path(request.folder), None, request.dtype),
        **settings,
    }


def _shares(request: Request) -> list[Share]:
    from neobert.encoding.share import default_processes, encode_share  # imports torch, which takes seconds

    size = request.processes or default_processes()
    if size == 1:
        return [encode_share(request, 0, 1)]
    try:
        with worker_pool(size, report_to_launcher) as ranks:
            return list(ranks.map(encode_share, [request] * size, range(size), [size] * size))
    except BrokenProcessPool as error:
        message = "an encoding process was killed, probably because memory ran out"
        hint = "lower --processes or --max-length; the same command continues the job"
        raise ProjectError("encode-killed", message, hint, exit_code=EXIT_TRAINING_FAILED) from error
