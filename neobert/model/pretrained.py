"""Base class of encoder and heads: initialization, loading, recomputation. Copied into checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from .configuration_neobert import AUTO_MAP, NeoBERTConfig
from .layers import EncoderBlock

SCALED_STD = 0.02
TRUNCATED_AT = 3.0
"""Standard deviations at which `init: scaled` truncates its normal, which loses 1.3 % of the spread."""


class NeoBERTPreTrainedModel(PreTrainedModel):
    """Base class of encoder and heads: initialization, loading, saving and activation checkpointing."""

    config_class = NeoBERTConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules: ClassVar[list[str]] = ["EncoderBlock"]
    fresh_parts: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the head's weights, which are initialized, with a warning, if a checkpoint lacks them."""

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load like transformers, but raise `ValueError` if weights of the encoder are missing."""
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        missing = sorted(key for key in info["missing_keys"] if not key.startswith(cls.fresh_parts))
        if missing:
            raise ValueError(
                f"the checkpoint lacks weights of {cls.__name__} ({len(missing)}, such as {missing[0]}), "
                "so it has another layout or another model size"
            )
        model.check_tying(info, kwargs.get("tie_word_embeddings"))
        return (model, info) if output_loading_info else model

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save like transformers, with an auto_map to the code that is saved next to the weights."""
        self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(*args, **kwargs)

    def check_tying(self, info: Mapping[str, Iterable[str]], requested: bool | None) -> None:
        """Raise ValueError if a checkpoint's decoder contradicts the config; no check without a decoder."""

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize linear layers and embeddings randomly, biases and the padding row to 0, norms to 1."""
        if isinstance(module, nn.Linear):
            self._draw_weight(module, self.config.decoder_init_range)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            self._draw_weight(module, self.config.embedding_init_range)
            if module.padding_idx is not None and not _is_loaded(module.weight):
                module.weight[module.padding_idx].zero_()
        elif isinstance(weight := getattr(module, "weight", None), nn.Parameter):
            nn.init.ones_(weight)
            if isinstance(bias := getattr(module, "bias", None), nn.Parameter):
                nn.init.zeros_(bias)

    def _draw_weight(self, module: nn.Linear | nn.Embedding, published_range: float) -> None:
        if self.config.init == "published":
            nn.init.uniform_(module.weight, -published_range, published_range)
            return
        is_residual_output = getattr(module, "is_residual_output", False)
        # 2 L outputs add up in the residual stream, which keeps its size for any number of blocks.
        divisor = math.sqrt(2 * self.config.num_hidden_layers) if is_residual_output else 1.0
        _truncated_normal(module.weight, SCALED_STD / divisor)

    def enable_gradient_checkpointing(self, every_n: int = 1) -> None:
        """Recompute blocks 0, n, 2n, ... in the backward pass (non-reentrant)."""
        blocks = [module for module in self.modules() if isinstance(module, EncoderBlock)]
        for index, block in enumerate(blocks):
            block.gradient_checkpointing = index % every_n == 0
            block._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)


def _is_loaded(weight: Tensor) -> bool:
    """Return whether a weight came from a checkpoint. Slices and copies lose transformers' mark."""
    return getattr(weight, "_is_hf_initialized", False)


def _truncated_normal(weight: Tensor, std: float) -> None:
    """Initialize from a normal distribution truncated at `TRUNCATED_AT` standard deviations.

    The samples are uniform numbers through the inverse distribution: torch's function rejects and draws
    again, which took seven times as long on two cores. Weights from a checkpoint are kept.
    """
    if not _is_loaded(weight):
        edge = math.erf(TRUNCATED_AT / math.sqrt(2))
        # In bf16 the edge would round to one, whose inverse is infinite.
        draws = torch.empty_like(weight, dtype=torch.float32).uniform_(-edge, edge)
        weight.copy_(draws.erfinv_().mul_(std * math.sqrt(2)))
