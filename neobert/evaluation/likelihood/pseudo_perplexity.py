"""Pseudo-perplexity of texts, over tokens and over documents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neobert.encoding.finite import not_finite
from neobert.encoding.texts import open_texts
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.evaluation.likelihood.job import Settings, discard, score_all
from neobert.plurals import counted
from neobert.runfiles.evaluation_report import SUMMARY, WEIGHTS, Figure, summary

if TYPE_CHECKING:
    from neobert.evaluation.likelihood.scorer import Likelihoods

KIND, SCHEMA_VERSION = "neobert-pseudo-perplexity", 1


def evaluate_texts(path: Path, column: str | None, split: str, settings: Settings) -> dict[str, Any]:
    """Score all texts, and return a report with their pseudo-perplexity. Raises `ProjectError`."""
    texts = open_texts(path, column, split)
    nothing = ProjectError(
        "pseudo-perplexity", "holds no tokens", "use a file with text", str(path), EXIT_USAGE
    )
    if next(iter(texts), None) is None:
        raise nothing
    scores = score_all(texts, {"texts": texts.identity()}, settings, texts.known_count())
    if not scores.values[:, 1].any():
        discard(settings.output)  # the next text would be refused as another evaluation
        raise nothing
    found = pseudo_perplexity(scores.values)
    if not all(value is not None and math.isfinite(value) for value in found.values()):
        discard(settings.output)
        message = f"the loss of {found['loss_per_token']:,.4g} nats per token has no finite pseudo-perplexity"
        raise not_finite(message, settings.folder)
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "source": texts.label,
        "model": settings.folder,
        WEIGHTS: scores.weights,
        SUMMARY: _summary(path.name, found, scores.counts.truncated),
        **found,
        "truncated": scores.counts.truncated,
        "tokens_lost": scores.counts.tokens_lost,
        "kernels": scores.kernels,
        "seconds": round(scores.seconds, 3),
    }


def _summary(name: str, found: Mapping[str, Any], truncated: int) -> dict[str, Any]:
    metrics = {
        "pseudo-perplexity of tokens": found["pseudo_perplexity"],
        "mean of documents": found["mean_of_documents"],
        "median of documents": found["median_of_documents"],
    }
    figures = [
        Figure(name=name, metric=metric, value=value, is_share=False) for metric, value in metrics.items()
    ]
    sizes = f"{counted(found['documents'], 'document')}, {counted(found['tokens'], 'token')}"
    notes = [f"{sizes}; comparable between models with the same tokenizer only"]
    notes += [f"{counted(truncated, 'document')} truncated"] if truncated else []
    return summary("Pseudo-perplexity", figures, notes)


def pseudo_perplexity(scores: Likelihoods) -> dict[str, Any]:
    """Return the pseudo-perplexity over all tokens, and its mean and median over documents.

    It is exp of the mean negative log-probability per token. Long documents weigh more in the value over all
    tokens. Texts without tokens are left out. A value beyond the range of floats is None.
    """
    kept: NDArray[np.float64] = scores[scores[:, 1] > 0]
    losses = -kept[:, 0] / kept[:, 1]
    total = -kept[:, 0].sum() / kept[:, 1].sum()
    documents = [_exp(loss) for loss in losses]
    is_finite = None not in documents
    return {
        "documents": len(kept),
        "tokens": int(kept[:, 1].sum()),
        "loss_per_token": float(total),
        "pseudo_perplexity": _exp(total),
        "mean_of_documents": float(np.mean(np.array(documents, float))) if is_finite else None,
        "median_of_documents": _exp(float(np.median(losses))),
    }


def _exp(loss: float) -> float | None:
    try:
        return math.exp(loss)
    except OverflowError:
        return None
