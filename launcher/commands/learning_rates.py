"""Learning rates for trained weights, which fall with the width of the model."""

from __future__ import annotations

import math
from pathlib import Path

from neobert.families.shape import ModelShape
from neobert.tasks.spec import TaskSpec

FINE_TUNING_RATE, BASE_WIDTH, TOP_RATE = 4e-5, 768, 3e-4
"""Learning rate for labels at the width of BERT-base, between its published rates. Published rates fall
faster than the width grows (1e-5 to 3e-5 at 1,024, 3e-4 at 256: OPT006); TOP_RATE is the limit. MiniLM (width
384) scored 0.390 at 1e-4 and 0.382 at 2e-4 after 200 steps (mean of 14 tables, one seed). At 8e-5, in 44 of
85 steps, it predicted a single class for all texts of five classes."""
CONTINUED_RATE, CONTINUED_TOKENS = 5e-4 * 768, 2048 * 512
"""Rate times width for continued pretraining with this many tokens per step (arXiv:2004.10964). It scales
with the square root of the tokens per step."""
ADAPTER_TOP_RATE = 1e-3
"""Twice the highest published rate of LoRA in OPT006."""
EMBEDDER_RATE = 2e-5 * 384
"""Rate times width for embeddings that are already trained, from the model card of all-MiniLM-L6-v2. After
400 steps on STS-B, SNLI and Quora with 106 to 160 pairs (three seeds), that model gained 2.1 points on STS-B
and lost 0.9 and 0.7 points of nDCG@10 on Cranfield and Vaswani. With 32 to 48 pairs it gained 1.8 and lost
1.7 and 0.8; at 5e-6 it gained 0.7 and lost 0.2 and 0.2."""
CHAT_RATE, CHAT_WIDTH = 2e-5, 4096
"""Learning rate for conversations and width of Llama 2 (arXiv:2307.09288). The rate falls with the square
root of the width. For SmolLM2-135M (width 576), 5e-5 was the best of 2e-5, 5e-5 and 1e-4; 1e-4 was by far the
worst."""


def rate_from_weights(spec: TaskSpec, folder: Path, shape: ModelShape, tokens: int) -> float:
    """Estimate the peak learning rate for training from weights with `tokens` tokens per step.

    Weights that declare keys of a task with pairs were trained for it, and get a lower rate.
    """
    width = shape.hidden_size
    if spec.is_self_supervised or spec.stores_targets:
        rate = CONTINUED_RATE * math.sqrt(tokens / CONTINUED_TOKENS) / width
    elif spec.predicts == "pairs":
        rate = EMBEDDER_RATE / width if spec.declared_keys(folder) else FINE_TUNING_RATE * BASE_WIDTH / width
    else:
        rate = min(TOP_RATE, FINE_TUNING_RATE * (BASE_WIDTH / width) ** 1.5)
    return _round_to_one_digit(rate)


def adapter_rate(rate: float) -> float:
    """Estimate the LoRA learning rate from the rate for full training (arXiv:2106.09685)."""
    return min(ADAPTER_TOP_RATE, _round_to_one_digit(10 * rate))


def conversation_rate(hidden_size: int) -> float:
    """Estimate the learning rate for conversations, which falls with the square root of the width."""
    return _round_to_one_digit(CHAT_RATE * math.sqrt(CHAT_WIDTH / hidden_size))


def _round_to_one_digit(rate: float) -> float:
    return float(f"{rate:.0e}")
