"""Search of an index for the texts that are closest to queries."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.encoding import Encoder
from neobert.encoding.declared import read_declared_settings
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.runfiles.model_folder import model_folder
from neobert.search.exact import best_rows
from neobert.search.index import CODE, Index, open_index


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Arguments of a search.

    Attributes:
        model: model folder; None: the path in the index.
        prompt, prompt_text: name of the prompt before each query, or the prompt itself; both None: the
            model's prompt for queries.
        top: number of texts per query.
    """

    index: str
    queries: list[str]
    model: str | None = None
    prompt: str | None = None
    prompt_text: str | None = None
    dtype: str | None = None
    device: str | None = None
    top: int = 10


def run(request: Request) -> dict[str, Any]:
    """Return index, prompt, search time and, per query, the closest texts with scores, as JSON values.

    Raises `ProjectError` if the index or its model is missing or was changed.
    """
    index = open_index(Path(request.index))
    encoder = _load_encoder(index, request)
    embeddings = encoder.encode(request.queries)
    started_s = time.perf_counter()
    scores, rows = best_rows(embeddings, index.embeddings, request.top, encoder.model.device)
    found = [
        {
            "query": query,
            "found": [
                {"score": round(float(score), 6), **index.passage(int(row))}
                for score, row in zip(scores[place], rows[place], strict=True)
            ],
        }
        for place, query in enumerate(request.queries)
    ]
    return {
        "index": request.index,
        "texts": index.header.rows,
        "prompt": encoder.prompt,
        "search_s": round(time.perf_counter() - started_s, 4),
        "results": found,
    }


def _load_encoder(index: Index, request: Request) -> Encoder:
    """Load the encoder. Raises `ProjectError` if it is not the model of the index."""
    folder = Path(request.model or index.header.model)
    if request.model is None and not folder.exists():
        hint = "if the model was moved, pass its folder as --model"
        raise ProjectError(CODE, "the model of the index is missing", hint, str(folder), EXIT_USAGE)
    folder = model_folder(folder)
    index.require_model(folder)
    prompts = read_declared_settings(folder).prompts
    prompt = prompts.query_prompt if request.prompt is None else prompts.prompt_named(request.prompt)
    return Encoder.load(
        folder,
        pooling=index.header.pooling,
        normalize=True,
        max_length=index.header.max_length,
        dtype=request.dtype,
        device=request.device,
        prompt=prompt if request.prompt_text is None else request.prompt_text,
        is_verified=True,
    )
