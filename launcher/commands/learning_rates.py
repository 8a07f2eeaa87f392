"""Learning rates for trained weights, which fall with the width of the model."""

from __future__ import annotations

import math
from pathlib import Path

from neobert.families.shape import ModelShape
from neobert.tasks.spec import TaskSpec

FINE_TUNING_RATE, BASE_WIDTH, TOP_RATE = 4e-5, 768, 3e-4
"""For labels: between the published rates for BERT-base. Those fall faster than the width (1e-5 to 3e-5 at
1,024, 3e-4 at 256: OPT006), up to TOP_RATE. MiniLM, of width 384, in 200 steps at 1e-4 and at 2e-4: 0.390 and
0.382, the mean of 14 tables (one seed); at 8e-5, in 44 of 85 steps, one class for every text of five."""
CONTINUED_RATE, CONTINUED_TOKENS = 5e-4 * 768, 2048 * 512
"""Product for continued pretraining, and its tokens per step (arXiv:2004.10964): falls with their root."""
ADAPTER_TOP_RATE = 1e-3
"""Twice the highest published rate of LoRA in OPT006."""
EMBEDDER_RATE = 2e-5 * 384
"""Product for embeddings that are trained already: all-MiniLM-L6-v2's own (its model card). In 400 steps of
STS-B, SNLI and Quora with 106 to 160 pairs, three seeds, that model gained 2.1 points of STS-B and lost 0.9
and 0.7 of nDCG@10 on Cranfield and Vaswani; with 32 to 48 pairs it gained 1.8 and lost 1.7 and 0.8, at 5e-6
it gained 0.7 and lost 0.2 and 0.2."""
CHAT_RATE, CHAT_WIDTH = 2e-5, 4096
"""Rate for conversations, of Llama 2 with its width (arXiv:2307.09288): falls with the root of the width. Of
2e-5, 5e-5 and 1e-4, 5e-5 was the best of SmolLM2-135M, with a width of 576, and 1e-4 by far the worst."""


def rate_from_weights(spec: TaskSpec, folder: Path, shape: ModelShape, tokens: int) -> float:
    """Return an estimate of the learning rate for trained weights, with `tokens` tokens per step.

    Weights that declare keys of the task were trained for it, and need no more than that rate.
    """
    width = shape.hidden_size
    if spec.reads_text or spec.stores_targets:
        rate = CONTINUED_RATE * math.sqrt(tokens / CONTINUED_TOKENS) / width
    elif spec.predicts == "pairs":
        rate = EMBEDDER_RATE / width if spec.declared(folder) else FINE_TUNING_RATE * BASE_WIDTH / width
    else:
        rate = min(TOP_RATE, FINE_TUNING_RATE * (BASE_WIDTH / width) ** 1.5)
    return _round_to_one_digit(rate)


def adapter_rate(rate: float) -> float:
    """Estimate the LoRA learning rate from the rate for full training (arXiv:2106.09685)."""
    return min(ADAPTER_TOP_RATE, _round_to_one_digit(10 * rate))


def conversation_rate(hidden_size: int) -> float:
    """Return an estimate of the learning rate for conversations."""
    return _round_to_one_digit(CHAT_RATE * math.sqrt(CHAT_WIDTH / hidden_size))


def _round_to_one_digit(rate: float) -> float:
    """Round a rate to one digit."""
    return float(f"{rate:.0e}")
