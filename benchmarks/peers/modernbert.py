"""Hugging Face's ModernBERT in the shape of NeoBERT-250M, and its training step on the same documents.

B rows, S row length, T tokens of a step, V vocabulary, D hidden size
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import ModernBertConfig, ModernBertForMaskedLM

from neobert.config.schema import ModelConfig
from neobert.families.neobert.spec import feed_forward_width
from peers.attention import CANDIDATES
from peers.batches import MASKED_SHARE, PeerBatch

MAX_GRAD_NORM = 1.0


def build_modernbert(
    model: ModelConfig, vocab_size: int, pad_id: int, implementation: str = "sdpa"
) -> ModernBertForMaskedLM:
    """Build ModernBERT with the same blocks, heads and feed-forward width, and global attention."""
    markers = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    config = ModernBertConfig(
        vocab_size=vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=feed_forward_width(model),
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        max_position_embeddings=model.max_position_embeddings,
        layer_types=["full_attention"] * model.num_hidden_layers,
        tie_word_embeddings=model.tie_word_embeddings,
        sparse_prediction=True,
        pad_token_id=pad_id,
        attn_implementation=implementation,
        **markers,
    )
    return ModernBertForMaskedLM(config)


class PeerStep:
    """A whole step: forward, backward, clipping, fused AdamW; fp32 weights compute in bf16 by autocast."""

    def __init__(
        self,
        model: ModernBertForMaskedLM,
        batches: list[PeerBatch],
        dtype: torch.dtype,
        backend: str,
        attention: str,
    ) -> None:
        """Build the step; `attention` is the candidate that the model was built with."""
        self.model = model.to(dtype)
        self.device, self.is_mixed = next(model.parameters()).device.type, dtype == torch.float32
        is_dynamic = len({batch.inputs["input_ids"].shape for batch in batches}) > 1
        self.forward = torch.compile(self.model, dynamic=is_dynamic, backend=backend)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.attention = CANDIDATES[attention]
        self.batches, self.index = batches, 0

    @property
    def cycle(self) -> int:
        """Return the number of steps after which the batches repeat."""
        return len(self.batches)

    def __call__(self) -> int:
        """Train on the next batch; return its number of non-padding tokens."""
        batch = self.batches[self.index % len(self.batches)]
        self.index += 1
        with (
            torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.is_mixed),
            self.attention.pinned(),
        ):
            loss = self.forward(**batch.inputs).loss
            loss.backward()
        self.loss = loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return batch.num_tokens


def count_parameters_and_flops(model: Any, on_targets: tuple[nn.Module, ...], width: int) -> dict[str, float]:
    """Count the parameters, and the training FLOPs per token for rows of `width` tokens.

    on_targets: linear layers that are applied to masked tokens only.
    """
    linear = sum(each.weight.numel() for each in model.modules() if isinstance(each, nn.Linear))
    masked = sum(each.weight.numel() for each in on_targets)
    attention = 12 * model.config.num_hidden_layers * model.config.hidden_size * width
    products = 6 * (linear - masked + MASKED_SHARE * masked)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "flops_of_a_token": products + attention,
    }
