"""Names in metrics.jsonl that the trainer writes and other programs read."""

from __future__ import annotations

TRAIN_LOSS = "train/loss"
TOKENS, PACE = "train/tokens_total", "train/tokens_per_sec"
"""Tokens trained on so far, and per second."""
EVAL, EVAL_LOSS = "eval/", "eval/loss"
"""Prefix of the metrics of an evaluation, and one of them."""
SOURCE, SOURCE_LOSS = "eval/source_", "eval/source_loss"
"""The same for an evaluation on the text of the run that this one continues."""
CORPUS_SHARE = "data/share/"
"""Prefix of the metric of each corpus of a mixture: its share of the tokens trained on so far."""


def on_source(name: str) -> str:
    """Return an evaluation metric's name on the text of the continued run: eval/source_loss."""
    return name.replace(EVAL, SOURCE, 1)


def on_own_text(name: str) -> str:
    """Return the metric's name on the run's own text; other names are returned as they are."""
    return name.replace(SOURCE, EVAL, 1)
