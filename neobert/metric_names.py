"""Names of the metrics in metrics.jsonl that the trainer writes and other programs read."""

from __future__ import annotations

TRAIN_LOSS = "train/loss"
TOKENS, PACE = "train/tokens_total", "train/tokens_per_sec"
"""Number of tokens trained on so far, and tokens per second."""
EVAL, EVAL_LOSS = "eval/", "eval/loss"
"""Prefix of all evaluation metrics, and the evaluation loss."""
SOURCE, SOURCE_LOSS = "eval/source_", "eval/source_loss"
"""The same for an evaluation on the text that the weights were trained on before this run."""
CORPUS_SHARE = "data/share/"
"""Prefix of one metric per corpus of a mixture: the share of the tokens trained on so far (0 to 1)."""

SPARSE = "nsa/"
"""Prefix of the metrics of native sparse attention."""


def source_metric_name(name: str) -> str:
    """Return an evaluation metric's name on the source text: eval/loss becomes eval/source_loss."""
    return name.replace(EVAL, SOURCE, 1)


def own_text_metric_name(name: str) -> str:
    """Return a metric's name on the run's own text, the inverse of `source_metric_name`.

    Names without the prefix of the source text are unchanged.
    """
    return name.replace(SOURCE, EVAL, 1)
