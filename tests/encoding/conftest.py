"""A small model folder with a tokenizer, and the embeddings of its texts one at a time."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from neobert.export.folder import read_tokenizer_files, write_hf_folder
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from tests.export.conftest import _one_thread_one_seed, tokenizer_dir

__all__ = ["_one_thread_one_seed", "tokenizer_dir"]

WORDS = ["the", "model", "reads", "text", "a", "b", "c", "unknown-word"]


@pytest.fixture
def model_folder(tmp_path: Path, tokenizer_dir: Path) -> Path:
    """An exported folder whose weights are large enough for a leak to show."""
    config = NeoBERTConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, embedding_init_range=1.0, decoder_init_range=0.3, attn_backend="sdpa",
        pooling="avg",
    )  # fmt: skip
    folder = tmp_path / "folder"
    write_hf_folder(NeoBERTLMHead(config), read_tokenizer_files(tokenizer_dir), folder)
    return folder


@pytest.fixture
def one_by_one() -> Callable[..., np.ndarray]:
    """Embeddings as a user of transformers computes them: one text at a time, in rows with padding."""

    @cache  # a property has fifty examples
    def load(folder: Path) -> tuple[Any, Any]:
        model = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
        return model, AutoTokenizer.from_pretrained(folder)

    def embed(folder: Path, texts: Sequence[str], pooling: str = "avg", max_length: int = 32) -> np.ndarray:
        model, tokenizer = load(folder)
        found = []
        for text in texts:
            row = tokenizer(
                text, truncation=True, padding="max_length", max_length=max_length, return_tensors="pt"
            )
            with torch.no_grad():
                hidden = model(row["input_ids"], row["attention_mask"]).last_hidden_state[0].double()
            real = hidden[row["attention_mask"][0].bool()]
            found.append({"avg": real.mean(0), "cls": real[0], "max": real.amax(0)}[pooling].numpy())
        return np.stack(found)

    return embed
