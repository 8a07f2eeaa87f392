"""Perplexity of texts by a causal model, and pseudo-perplexity by a masked-language model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neobert.encoding.finite import non_finite_error
from neobert.encoding.texts import Texts, open_texts
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.evaluation.likelihood.job import Settings, remove_scores, score_all
from neobert.families.table import is_causal
from neobert.plurals import counted
from neobert.runfiles.evaluation_report import SUMMARY, WEIGHTS, ReportFigure, summary_json
from neobert.runfiles.model_folder import model_folder, read_json
from neobert.runfiles.run_dir import CONFIG

if TYPE_CHECKING:
    from neobert.evaluation.likelihood.scorer import Likelihoods

KIND, SCHEMA_VERSION = "neobert-pseudo-perplexity", 1
KIND_OF_CAUSAL = "neobert-perplexity"


def evaluate_texts(path: Path, column: str | None, split: str, settings: Settings) -> dict[str, Any]:
    """Score all texts; return a report with the pseudo-perplexity, or a causal model's perplexity.

    Raises `ProjectError` for a file without tokens, or values that are not finite.
    """
    texts = open_texts(path, column, split)
    nothing = ProjectError(
        "pseudo-perplexity", "the file has no tokens", "use a file with text", str(path), EXIT_USAGE
    )
    if next(iter(texts), None) is None:
        raise nothing
    scores = score_all(texts, {"texts": texts.identity()}, settings, texts.known_count())
    if not scores.values[:, 1].any():
        remove_scores(settings.output)  # the next text would be refused as another evaluation
        raise nothing
    config = read_json(model_folder(Path(settings.folder)) / CONFIG)
    report = pseudo_perplexity(scores.values)
    if is_next := is_causal(config.get("model_type", "")):
        report = {name.removeprefix("pseudo_"): value for name, value in report.items()}
        report |= _values_per_byte(scores.values, texts)
    if not all(value is not None and math.isfinite(value) for value in report.values()):
        remove_scores(settings.output)
        message = f"the loss of {report['loss_per_token']:,.4g} nats per token has no finite perplexity"
        raise non_finite_error(message, settings.folder)
    return {
        "kind": KIND_OF_CAUSAL if is_next else KIND,
        "schema_version": SCHEMA_VERSION,
        "source": texts.label,
        "model": settings.folder,
        WEIGHTS: scores.weights,
        SUMMARY: _report_summary(path.name, report, scores.counts.truncated),
        **report,
        "truncated": scores.counts.truncated,
        "tokens_lost": scores.counts.tokens_lost,
        "kernels": scores.kernels,
        "seconds": round(scores.seconds, 3),
    }


def _report_summary(name: str, report: Mapping[str, Any], truncated: int) -> dict[str, Any]:
    metrics = {
        **{LABELS[name]: report[name] for name in LABELS if name in report},
        "mean of documents": report["mean_of_documents"],
        "median of documents": report["median_of_documents"],
    }
    figures = [
        ReportFigure(name=name, metric=metric, value=value, is_share=False)
        for metric, value in metrics.items()
    ]
    title = "Perplexity" if "perplexity" in report else "Pseudo-perplexity"
    sizes = f"{counted(report['documents'], 'document')}, {counted(report['tokens'], 'token')}"
    notes = [f"{sizes}; values per token are comparable only between models with the same tokenizer"]
    notes += [f"{counted(truncated, 'document')} truncated"] if truncated else []
    return summary_json(title, figures, notes)


LABELS = {
    "pseudo_perplexity": "pseudo-perplexity of tokens",
    "perplexity": "perplexity of tokens",
    "byte_perplexity": "perplexity of bytes",
    "bits_per_byte": "bits per byte",
}
"""Labels of the values over all tokens, by their keys in the report."""


def _values_per_byte(scores: Likelihoods, texts: Texts) -> dict[str, Any]:
    """Return the values per byte of UTF-8, which are comparable between tokenizers."""
    num_bytes = sum(len(text.encode("utf-8", "replace")) for text in texts)
    loss = float(-scores[:, 0].sum()) / num_bytes
    return {"bytes": num_bytes, "byte_perplexity": _finite_exp(loss), "bits_per_byte": loss / math.log(2)}


def pseudo_perplexity(scores: Likelihoods) -> dict[str, Any]:
    """Return the pseudo-perplexity over all tokens, and its mean and median over documents.

    It is exp of the mean negative log-probability per token. Long documents weigh more in the value over all
    tokens. Texts without tokens are omitted. A value that overflows a float64 is None.
    """
    kept: NDArray[np.float64] = scores[scores[:, 1] > 0]
    losses = -kept[:, 0] / kept[:, 1]
    total = -kept[:, 0].sum() / kept[:, 1].sum()
    documents = [_finite_exp(loss) for loss in losses]
    is_finite = None not in documents
    return {
        "documents": len(kept),
        "tokens": int(kept[:, 1].sum()),
        "loss_per_token": float(total),
        "pseudo_perplexity": _finite_exp(total),
        "mean_of_documents": float(np.mean(np.array(documents, float))) if is_finite else None,
        "median_of_documents": _finite_exp(float(np.median(losses))),
    }


def _finite_exp(loss: float) -> float | None:
    try:
        return math.exp(loss)
    except OverflowError:
        return None
