"""Registered checks, and what they share: texts, tolerance, reference embeddings."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

TEXTS = [
    "return the given value",
    "a list of names and the file that holds them, one to a line, with the number of bytes of each",
    "the module reads a string",
    "error",
]
LABELS = [0, 1, 0, 1]
CHECKS: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {}
TRUST = {"trust_remote_code": True}


def check(*distributions: str):
    """Register a check by its name, with the distributions whose versions it reports."""

    def register(function):
        CHECKS[function.__name__] = function, distributions
        return function

    return register


def close(found, wanted, limit: float = 1e-5) -> str:
    """Return the largest difference. Raises AssertionError beyond the limit.

    The limit is relative to the largest magnitude (at least 1), as that of `export`.
    """
    gap = float(np.abs(np.asarray(found) - np.asarray(wanted)).max())
    scale = max(1.0, float(np.abs(np.asarray(wanted)).max()))
    assert gap <= limit * scale, f"differs by {gap:.3g} (limit {limit:g} of {scale:.3g})"
    return f"{gap:.1e}"


def embeddings(exported: Path) -> np.ndarray:
    """Embed each text alone with the encoder, by the pooling of config.json."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(exported / "hf", **TRUST)
    model = AutoModel.from_pretrained(exported / "hf", **TRUST).eval()
    rows = []
    with torch.no_grad():
        for text in TEXTS:
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            how = model.config.pooling
            rows.append(hidden[0] if how == "cls" else hidden.mean(0) if how == "avg" else hidden.amax(0))
    return torch.stack(rows).numpy()
