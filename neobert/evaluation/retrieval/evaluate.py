"""Retrieval evaluation. Resumable: the corpus embeddings [N documents, D hidden size] are saved in shards."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from neobert.encoding import Encoder
from neobert.encoding.encoder import Embeddings
from neobert.encoding.shards import Shards
from neobert.evaluation.embedder import (
    DOCUMENT_PREFIX,
    QUERY_PREFIX,
    describe_embedder,
    embedder_identity,
    load_embedder,
    prefix_notes,
    resolve_prompts,
)
from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.evaluation.retrieval.files import Collection
from neobert.evaluation.retrieval.metrics import mean_metrics
from neobert.evaluation.retrieval.ranking import rank
from neobert.progress import Progress
from neobert.runfiles.evaluation_report import SUMMARY, ReportFigure, summary_json

KIND, SCHEMA_VERSION = "neobert-retrieval", 1
TEXTS_PER_SHARD = 16_384


def evaluate_collection(
    collection: Collection, model: EmbeddingModel, output: Path, texts_per_shard: int = TEXTS_PER_SHARD
) -> dict[str, Any]:
    """Rank the corpus for every query, and return a report with the mean metrics.

    Args:
        output: .npy file for the embeddings of the corpus [N, D].
        texts_per_shard: texts per saved shard; a killed evaluation loses at most one shard.

    Raises `ProjectError` for an unusable model, or if `output` belongs to another evaluation.
    """
    encoder = load_embedder(model)
    started_s = time.perf_counter()
    prompts = resolve_prompts(encoder, model)
    queries = encoder.encode(list(collection.queries.values()), prompt=prompts[QUERY_PREFIX])
    corpus = _corpus_embeddings(collection, encoder, model, output, texts_per_shard)
    ranked = rank(queries, corpus, collection.corpus, encoder.model.device)
    own = collection.own_documents
    rankings = {
        query: [name for name in row if not (query in own and name == query)]
        for query, row in zip(collection.queries, ranked, strict=True)
    }
    metrics = mean_metrics(rankings, collection.relevance)
    figures = [
        ReportFigure(name=collection.name, metric=name, value=value) for name, value in metrics.items()
    ]
    sizes = f"{len(collection.queries):,} queries, {len(corpus):,} documents, exact search by cosine"
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "model": model.folder,
        SUMMARY: summary_json("Retrieval", figures, [sizes, *prefix_notes(prompts)]),
        "metrics": metrics,
        "queries": len(collection.queries),
        "documents": len(corpus),
        "unjudged_queries": collection.num_unjudged,
        "unknown_judgements": collection.num_unknown,
        "queries_in_corpus": len(own),
        "truncated": encoder.counts.truncated,
        **describe_embedder(encoder, model),
        "seconds": round(time.perf_counter() - started_s, 3),
    }


def _corpus_embeddings(
    collection: Collection, encoder: Encoder, model: EmbeddingModel, output: Path, texts_per_shard: int
) -> Embeddings:
    """Return the embeddings of the corpus [N, D]; only shards that are not saved yet are encoded.

    Raises `ProjectError` if the saved shards are of other texts, queries, judgements or settings. The
    embeddings do not depend on queries and judgements, but the report of the earlier evaluation would be
    overwritten.
    """
    prompts = resolve_prompts(encoder, model)
    identity = {
        **dict(zip(("texts", "queries", "judgements"), collection.identity, strict=True)),
        **embedder_identity(encoder, model),
        "prefix": prompts[DOCUMENT_PREFIX],
        QUERY_PREFIX: prompts[QUERY_PREFIX],
        "texts_per_shard": texts_per_shard,
    }
    shards, query_counts = Shards(output), encoder.counts
    encode = partial(encoder.encode, prompt=prompts[DOCUMENT_PREFIX])
    progress = Progress("encoding the corpus", "documents", len(collection.corpus))
    with shards.lock(identity):
        num_shards, _ = shards.write_missing(
            collection.corpus.values(), texts_per_shard, encoder, encode, progress
        )
        # Earlier sessions may have encoded some of the shards.
        encoder.counts = shards.counts(num_shards)
        encoder.counts.add(query_counts)
        return np.concatenate([np.load(file, allow_pickle=False) for file in shards.files(num_shards)])
