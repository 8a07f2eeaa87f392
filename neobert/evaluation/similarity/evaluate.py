"""Similarity evaluation: correlation of the cosine similarities of pairs with their scores."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from neobert.data.sources.pair_columns import POSITIVE, SCORE
from neobert.data.sources.rows import TEXT
from neobert.evaluation.embedder import (
    DOCUMENT_PREFIX,
    QUERY_PREFIX,
    describe_embedder,
    load_embedder,
    prefix_notes,
    resolve_prompts,
)
from neobert.evaluation.embedding_model import EmbeddingModel
from neobert.evaluation.similarity.files import ScoredPairs
from neobert.metric_names import EVAL
from neobert.runfiles.evaluation_report import SUMMARY, ReportFigure, summary_json
from neobert.tasks.correlation import correlation_metrics

KIND, SCHEMA_VERSION = "neobert-similarity", 1


def evaluate_pairs(pairs: ScoredPairs, model: EmbeddingModel) -> dict[str, Any]:
    """Return a report with Spearman's and Pearson's correlation of cosines and scores.

    Raises `ProjectError` for an unusable model.
    """
    encoder = load_embedder(model)
    started_s = time.perf_counter()
    prompts = resolve_prompts(encoder, model)
    first = encoder.encode([row[TEXT] for row in pairs.rows], prompt=prompts[QUERY_PREFIX])
    second = encoder.encode([row[POSITIVE] for row in pairs.rows], prompt=prompts[DOCUMENT_PREFIX])
    similar = (first.astype(np.float64) * second).sum(1)
    found = correlation_metrics(similar, np.array([row[SCORE] for row in pairs.rows]))
    metrics = {name.removeprefix(EVAL): value for name, value in found.items()}
    figures = [ReportFigure(name=pairs.name, metric=name, value=value) for name, value in metrics.items()]
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "model": model.folder,
        SUMMARY: summary_json(
            "Similarity", figures, [f"{len(pairs.rows):,} pairs, cosine", *prefix_notes(prompts)]
        ),
        "metrics": metrics,
        "pairs": len(pairs.rows),
        "data": pairs.identity,
        "truncated": encoder.counts.truncated,
        **describe_embedder(encoder, model),
        "seconds": round(time.perf_counter() - started_s, 3),
    }
