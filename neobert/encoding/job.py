"""A job that encodes texts to a file, resumable, with one process per GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neobert.encoding.declared import DeclaredSettings, read_declared_settings
from neobert.encoding.passages import LONGEST
from neobert.encoding.processes import run_in_processes, throughput_report
from neobert.encoding.request import Request
from neobert.encoding.shards import JSONL, NPY, PARQUET, WRITERS, Shards, write_arrays
from neobert.encoding.texts import Texts, open_texts, unusable_texts_error
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.runfiles.model_folder import model_folder
from neobert.search.index import require_no_index, write_index

if TYPE_CHECKING:
    from neobert.encoding.share import ShareResult


def run(request: Request) -> dict[str, Any]:
    """Encode the missing shards, merge all into the output and return a report. Raises `ProjectError`."""
    output = Path(request.output)
    if output.suffix not in WRITERS:
        endings = f"{NPY}, {PARQUET} or {JSONL}"
        message = f"--output {output.name} does not end in {endings}"
        hint = f"choose a file name that ends in {endings}"
        raise ProjectError("encode-output", message, hint, str(output), EXIT_USAGE)
    if request.is_index:
        require_no_index(output.parent)
        request = _request_for_index(request)
    folder = model_folder(Path(request.folder))
    declared = read_declared_settings(folder)
    declared.resolve_pooling(request.pooling, folder)
    request = replace(
        request, folder=str(folder), prompt=None, prompt_text=_resolve_prompt(request, declared)
    )
    texts = open_texts(Path(request.texts), request.column, request.split)
    if next(iter(texts), None) is None:
        raise unusable_texts_error(request.texts, "the file has no texts", "pass a file with text")
    shards, identity = Shards(output), _job_identity(request, texts)
    with shards.lock(identity):
        shares = _encode_shares(request)
        if request.is_index:
            with shards.convert_write_errors(output.parent):
                num_texts = write_index(request, texts, identity["texts"], shares[0].settings)
        report = {"source": texts.label, **_merge_shards(request, shards, shares)}
        return report | {"texts": num_texts, "passages": report["texts"]} if request.is_index else report


def _request_for_index(request: Request) -> Request:
    """Return the request with unit-length embeddings, for cosine search; refuse `--no-normalize`."""
    if request.normalize is False:
        message = "--no-normalize and --index are both set, but search needs embeddings of unit length"
        raise ProjectError("search-index", message, "remove --no-normalize", exit_code=EXIT_USAGE)
    return replace(request, normalize=True)


def _resolve_prompt(request: Request, declared: DeclaredSettings) -> str:
    """Return the requested prompt, else the model's default (for an index: its document prompt)."""
    if request.prompt_text is not None:
        return request.prompt_text
    if request.prompt is not None:
        return declared.prompts.prompt_named(request.prompt)
    return declared.prompts.document_prompt if request.is_index else declared.prompts.text_prompt


def _merge_shards(request: Request, shards: Shards, shares: Sequence[ShareResult]) -> dict[str, Any]:
    first = shares[0]
    counts = shards.counts(first.num_shards)
    suffix = shards.output.suffix
    shards.merge(first.num_shards, partial(write_arrays, width=first.hidden_size, suffix=suffix))
    return {
        "output": str(shards.output.parent if request.is_index else shards.output),
        "embeddings": [counts.texts, first.hidden_size],
        **asdict(counts),
        **first.settings,
        **throughput_report(shares),
    }


def _job_identity(request: Request, texts: Texts) -> dict[str, Any]:
    """Return the inputs that determine the embeddings, as JSON values."""
    from neobert.encoding.placement import model_identity  # imports torch, which takes seconds

    settings = asdict(request)
    for name in ("folder", "texts", "output", "processes", "dtype", "device", "is_index", "prompt"):
        del settings[name]
    return {
        "texts": texts.identity(),
        **model_identity(Path(request.folder), request.device, request.dtype),
        **settings,
        **({"passages": LONGEST} if request.is_index else {}),
    }


def _encode_shares(request: Request) -> list[ShareResult]:
    from neobert.encoding.placement import num_processes  # imports torch, which takes seconds
    from neobert.encoding.share import encode_share

    return run_in_processes(
        encode_share, request, num_processes(request.processes, request.device), "encoding"
    )
