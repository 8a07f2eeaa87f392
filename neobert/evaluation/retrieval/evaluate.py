"""Exact search by cosine, resumable: the embeddings of the corpus are saved in shards.

Shapes: Q queries, N documents, D hidden size.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from neobert.encoding import Encoder
from neobert.encoding.encoder import Embeddings
from neobert.encoding.job import model_identity
from neobert.encoding.shards import Shards
from neobert.encoding.tokens import TextCounts
from neobert.evaluation.retrieval.files import Collection, read_collection
from neobert.evaluation.retrieval.metrics import DEPTH, mean_metrics

KIND, VERSION = "neobert-retrieval", 1
QUERIES_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Model, prompts and precision. None: as the folder declares it, or as the device prefers it.

    Attributes:
        output: .npy file for the embeddings of the corpus [N, D].
        query_prefix, document_prefix: put before each text.
    """

    folder: str
    output: Path
    pooling: str | None = None
    max_length: int | None = None
    dtype: str | None = None
    device: str | None = None
    query_prefix: str = ""
    document_prefix: str = ""
    texts_per_shard: int = 16_384


def evaluate_folder(data: Path, settings: Settings) -> dict[str, Any]:
    """Rank the corpus for every query, and return means over the queries. Raises `ProjectError`."""
    collection = read_collection(data)
    encoder = Encoder.load(
        settings.folder,
        pooling=settings.pooling,
        normalize=True,
        max_length=settings.max_length,
        device=settings.device,
        dtype=settings.dtype,
    )
    started_s = time.perf_counter()
    queries = encoder.encode([settings.query_prefix + text for text in collection.queries.values()])
    corpus = _corpus_embeddings(collection, encoder, settings)
    names = list(collection.corpus)
    ranked = rank(queries, corpus, encoder.model.device)
    rankings = {
        query: [names[index] for index in row] for query, row in zip(collection.queries, ranked, strict=True)
    }
    return {
        "kind": KIND,
        "version": VERSION,
        "model": settings.folder,
        "metrics": mean_metrics(rankings, collection.relevance),
        "queries": len(collection.queries),
        "documents": len(corpus),
        "unjudged_queries": collection.num_unjudged,
        "unknown_judgements": collection.num_unknown,
        "truncated": encoder.counts.truncated,
        "pooling": encoder.pooling,
        "max_length": encoder.tokenizer.max_length,
        "query_prefix": settings.query_prefix,
        "document_prefix": settings.document_prefix,
        "kernels": encoder.model.kernels,
        "seconds": round(time.perf_counter() - started_s, 3),
    }


def _corpus_embeddings(collection: Collection, encoder: Encoder, settings: Settings) -> Embeddings:
    """Encode what is missing of the corpus; the time that it takes is estimated after the first shard."""
    shards, size = Shards(settings.output), settings.texts_per_shard
    shards.begin(
        {
            "texts": collection.identity[0],
            **model_identity(Path(settings.folder)),
            "pooling": encoder.pooling,
            "max_length": encoder.tokenizer.max_length,
            "dtype": settings.dtype,
            "prefix": settings.document_prefix,
            "texts_per_shard": size,
        }
    )
    texts = [settings.document_prefix + text for text in collection.corpus.values()]
    groups = [texts[start : start + size] for start in range(0, len(texts), size)]
    missing = [number for number in range(len(groups)) if not shards.has(number)]
    for place, number in enumerate(missing):
        group, before, started_s = groups[number], encoder.counts, time.perf_counter()
        encoder.counts = TextCounts()
        shards.write(number, encoder.encode(group), encoder.counts)
        encoder.counts.add(before)
        rate = len(group) / (time.perf_counter() - started_s)
        rest = sum(len(groups[each]) for each in missing[place + 1 :])
        done = f"{len(texts) - rest:,} of {len(texts):,} documents, {rate:,.0f} per s"
        print(f"{done}, {rest / rate:,.0f} s left", file=sys.stderr, flush=True)
    return np.concatenate([shards.read(number) for number in range(len(groups))])


def rank(queries: Embeddings, corpus: Embeddings, device: torch.device) -> list[list[int]]:
    """Return the indices of the documents with the highest cosine, the best first, for each query.

    queries [Q, D] and corpus [N, D] have length 1.
    """
    documents = F.normalize(torch.from_numpy(corpus).to(device), dim=-1)
    found: list[list[int]] = []
    for part in torch.from_numpy(queries).split(QUERIES_AT_ONCE):
        scores = part.to(device) @ documents.T
        found += scores.topk(min(DEPTH, len(documents)), dim=-1).indices.tolist()
    return found
