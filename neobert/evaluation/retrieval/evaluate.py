"""Retrieval evaluation. Resumable: the corpus embeddings [N documents, D hidden size] are saved in shards."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neobert.encoding import Encoder
from neobert.encoding.counts import TextCounts
from neobert.encoding.encoder import Embeddings
from neobert.encoding.shards import Shards
from neobert.evaluation.embedder import describe, identity_of, load_embedder, prompts_note
from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.evaluation.retrieval.files import Collection
from neobert.evaluation.retrieval.metrics import mean_metrics
from neobert.evaluation.retrieval.ranking import rank
from neobert.progress import Progress
from neobert.runfiles.evaluation_report import SUMMARY, Figure, summary

KIND, SCHEMA_VERSION = "neobert-retrieval", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Model and output of a retrieval evaluation.

    Attributes:
        output: .npy file for the embeddings of the corpus [N, D].
        texts_per_shard: texts per saved shard; a killed evaluation loses at most one shard.
    """

    model: EmbeddingModel
    output: Path
    texts_per_shard: int = 16_384


def evaluate_collection(collection: Collection, settings: Settings) -> dict[str, Any]:
    """Rank the corpus for every query, and return a report with the mean metrics. Raises `ProjectError`."""
    encoder, model = load_embedder(settings.model), settings.model
    started_s = time.perf_counter()
    queries = encoder.encode([model.query_prefix + text for text in collection.queries.values()])
    corpus = _corpus_embeddings(collection, encoder, settings)
    ranked = rank(queries, corpus, collection.corpus, encoder.model.device)
    own = collection.own_documents
    rankings = {
        query: [name for name in row if not (query in own and name == query)]
        for query, row in zip(collection.queries, ranked, strict=True)
    }
    metrics = mean_metrics(rankings, collection.relevance)
    figures = [Figure(name=collection.name, metric=name, value=value) for name, value in metrics.items()]
    sizes = f"{len(collection.queries):,} queries, {len(corpus):,} documents, exact search by cosine"
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "model": model.folder,
        SUMMARY: summary("Retrieval", figures, [sizes, *prompts_note(model)]),
        "metrics": metrics,
        "queries": len(collection.queries),
        "documents": len(corpus),
        "unjudged_queries": collection.num_unjudged,
        "unknown_judgements": collection.num_unknown,
        "queries_in_corpus": len(own),
        "truncated": encoder.counts.truncated,
        **describe(encoder, model),
        "seconds": round(time.perf_counter() - started_s, 3),
    }


def _corpus_embeddings(collection: Collection, encoder: Encoder, settings: Settings) -> Embeddings:
    """Return the embeddings of the corpus [N, D]; only shards that are not saved yet are encoded.

    Other queries or judgements are an error, although the embeddings do not depend on them: the report of
    the earlier evaluation would be overwritten.
    """
    model = settings.model
    texts, queries, judgements = collection.identity
    identity = {
        "texts": texts,
        "queries": queries,
        "judgements": judgements,
        **identity_of(encoder, model),
        "prefix": model.document_prefix,
        "query_prefix": model.query_prefix,
        "texts_per_shard": settings.texts_per_shard,
    }
    shards = Shards(settings.output)
    with shards.begin(identity):
        return _encode_missing(collection, encoder, settings, shards)


def _encode_missing(
    collection: Collection, encoder: Encoder, settings: Settings, shards: Shards
) -> Embeddings:
    model, size = settings.model, settings.texts_per_shard
    texts = [model.document_prefix + text for text in collection.corpus.values()]
    groups = [texts[start : start + size] for start in range(0, len(texts), size)]
    missing = [number for number in range(len(groups)) if not shards.has(number)]
    num_missing = sum(len(groups[number]) for number in missing)
    progress = Progress("encoding the corpus", "documents", len(texts))
    progress.skip(len(texts) - num_missing)
    of_queries = encoder.counts
    for number in missing:
        encoder.counts = TextCounts()
        shards.write(number, encoder.encode(groups[number], progress.advance), encoder.counts)
    # Earlier sessions may have encoded some of the shards.
    encoder.counts = shards.counts(len(groups))
    encoder.counts.add(of_queries)
    return np.concatenate([shards.read(number) for number in range(len(groups))])
