"""Hugging Face's ModernBERT in the shape of NeoBERT-250M, and its training step on the same documents.

B rows, S row length, V vocabulary, D hidden size
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import ModernBertConfig, ModernBertForMaskedLM

from neobert.config.schema import ModelConfig
from neobert.data.store.token_store import TokenStore
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.families.neobert.spec import feed_forward_width

MASKED_SHARE, MAX_GRAD_NORM, NUM_BATCHES, IGNORED = 0.2, 1.0, 4, -100


def build(model: ModelConfig, vocab_size: int, pad_id: int) -> ModernBertForMaskedLM:
    """Build the peer: the same numbers of blocks, heads and gated columns, with global attention."""
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
        attn_implementation="sdpa",
        **markers,
    )
    return ModernBertForMaskedLM(config)


class Batch:
    """Rows of one shape, a fifth of their tokens masked: the same number of them in every batch."""

    def __init__(self, rows: Tensor, is_token: Tensor, mask_id: int, num_targets: int, device: str) -> None:
        places = is_token.flatten().nonzero().squeeze(1)
        chosen = places[torch.randperm(len(places))[:num_targets]]
        labels = torch.full((rows.numel(),), IGNORED)
        labels[chosen] = rows.flatten()[chosen]
        inputs = rows.flatten().clone()
        inputs[chosen] = mask_id
        self.num_tokens = len(places)
        self.inputs: dict[str, Any] = {
            "input_ids": inputs.view_as(rows).to(device),
            "labels": labels.view_as(rows).to(device),
            "attention_mask": is_token.to(device),
        }


def concatenated(
    store: TokenStore, tokenizer: TokenizerBundle, rows: int, width: int, device: str
) -> Iterator[Batch]:
    """Cut the text into full rows without isolation of documents; `NUM_BATCHES` batches [B, S]."""
    size = rows * width
    for index in range(NUM_BATCHES):
        ids = torch.from_numpy(store.tokens[index * size : (index + 1) * size].astype("int64"))
        is_token = torch.ones(rows, width, dtype=torch.bool)
        batch = Batch(ids.view(rows, width), is_token, tokenizer.mask_id, int(MASKED_SHARE * size), device)
        batch.inputs["attention_mask"] = None  # full rows need none, and SDPA then takes its fastest kernel
        yield batch


def padded(
    store: TokenStore, tokenizer: TokenizerBundle, rows: int, width: int, device: str
) -> Iterator[Batch]:
    """Put each document into a row of its own; `NUM_BATCHES` batches [B, S]."""
    drawn = [documents(store, index * rows, rows, width) for index in range(NUM_BATCHES)]
    fewest = min(sum(map(len, batch)) for batch in drawn)
    for batch in drawn:
        is_token = torch.arange(width)[None, :] < torch.tensor([len(ids) for ids in batch])[:, None]
        grid = torch.full((rows, width), tokenizer.pad_id)
        grid[is_token] = torch.cat(batch)
        yield Batch(grid, is_token, tokenizer.mask_id, int(MASKED_SHARE * fewest), device)


def documents(store: TokenStore, first: int, count: int, width: int) -> list[Tensor]:
    bounds = pairwise(store.offsets[first : first + count + 1])
    return [torch.from_numpy(store.tokens[a : min(b, a + width)].astype("int64")) for a, b in bounds]


def padded_width(store: TokenStore, rows: int, longest: int) -> int:
    """Return the expected length of the longest of a number of documents, rounded up to a multiple of 64.

    A collator pads every batch to its longest; one width that costs as much compiles once.
    """
    lengths = [b - a for a, b in pairwise(store.offsets)]
    tops = [max(lengths[first : first + rows]) for first in range(0, len(lengths) - rows + 1, rows)]
    return min(longest, 64 * max(1, round(sum(tops) / len(tops) / 64)))


class PeerStep:
    """A whole step: forward, backward, clipping, fused AdamW; fp32 weights compute in bf16 by autocast."""

    def __init__(
        self, model: ModernBertForMaskedLM, batches: list[Batch], dtype: torch.dtype, backend: str
    ) -> None:
        self.model = model.to(dtype)
        self.device, self.is_mixed = next(model.parameters()).device.type, dtype == torch.float32
        self.forward = torch.compile(self.model, dynamic=False, backend=backend)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.batches, self.index = batches, 0

    def __call__(self) -> int:
        """Train on the next batch; return its number of tokens without padding."""
        batch = self.batches[self.index % len(self.batches)]
        self.index += 1
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.is_mixed):
            loss = self.forward(**batch.inputs).loss
        loss.backward()
        self.loss = loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return batch.num_tokens


def work(model: Any, on_targets: tuple[nn.Module, ...], width: int) -> dict[str, float]:
    """Count parameters, and the FLOPs of training on a token in a row of this width.

    on_targets: linear layers that see the masked tokens only.
    """
    linear = sum(each.weight.numel() for each in model.modules() if isinstance(each, nn.Linear))
    masked = sum(each.weight.numel() for each in on_targets)
    attention = 12 * model.config.num_hidden_layers * model.config.hidden_size * width
    products = 6 * (linear - masked + MASKED_SHARE * masked)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "flops_of_a_token": products + attention,
    }
