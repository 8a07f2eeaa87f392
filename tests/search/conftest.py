"""A tiny encoder and its index."""

from pathlib import Path

import pytest

from neobert.encoding.job import run
from neobert.encoding.request import EMBEDDINGS, Request
from tests.encoding.conftest import _one_thread_one_seed, model_folder, tokenizer_dir

__all__ = ["_one_thread_one_seed", "model_folder", "tokenizer_dir"]

TEXTS = ["the model reads", "a b c", "", "text\u2028text é", "b b model", "the model reads", "c c c"]


@pytest.fixture
def request_of(tmp_path: Path, model_folder: Path) -> Request:
    source = tmp_path / "texts.txt"
    source.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    output = tmp_path / "index" / EMBEDDINGS
    return Request(str(model_folder), str(source), str(output), is_index=True, texts_per_shard=3)


@pytest.fixture
def index(request_of: Request) -> Path:
    run(request_of)
    return Path(request_of.output).parent
