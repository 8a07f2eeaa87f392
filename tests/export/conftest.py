"""A small model and a tokenizer for the folders under test."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from neobert.export import run as export_run
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from tests.model.conftest import _one_thread_one_seed

__all__ = ["_one_thread_one_seed"]

SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


@pytest.fixture
def make_model() -> Callable[..., NeoBERTLMHead]:
    shape = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 32,
        "attn_backend": "sdpa",
    }
    return lambda **changes: NeoBERTLMHead(NeoBERTConfig(**{**shape, **changes})).eval()


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> Path:
    words = [*SPECIAL.values(), "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "the", "model", "reads", "text"]
    tokenizer = Tokenizer(
        models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    folder = tmp_path / "tokenizer"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", **SPECIAL).save_pretrained(
        folder
    )
    return folder


def leave_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no exported folder read back, which imports the libraries of its users once more."""
    monkeypatch.setattr(export_run, "run_reader", lambda *_: ({}, {}))
    monkeypatch.setattr(export_run, "compare_outputs", lambda *_: {})
