"""Loading of a scorer from a model folder."""

from __future__ import annotations

from pathlib import Path

from neobert.encoding.model import load_model
from neobert.encoding.placement import resolve_placement
from neobert.encoding.tokens import TextTokenizer
from neobert.evaluation.likelihood.next_tokens import WINDOW, NextTokenScorer
from neobert.evaluation.likelihood.scorer import Scorer
from neobert.runfiles.model_folder import model_folder


def load_scorer(
    folder: str | Path,
    *,
    max_length: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    tokens_per_run: int | None = None,
) -> Scorer | NextTokenScorer:
    """Load the scorer of next tokens for a causal model, else of masked tokens.

    Arguments and errors as for `Encoder.load`, but `max_length` is limited to the positions of the model. By
    default, windows of a causal model have `WINDOW` tokens.
    """
    path = model_folder(Path(folder))
    model = load_model(path, *resolve_placement(device, dtype), needs_decoder=True)
    if model.is_causal:
        return NextTokenScorer.from_model(
            model, path, min(max_length or WINDOW, model.max_length), tokens_per_run
        )
    length = min(max_length or model.max_length, model.max_length)
    tokenizer = TextTokenizer.load(path, length, model.num_rows, ("mask_token",))
    return Scorer(model, tokenizer, tokens_per_run, str(path))
