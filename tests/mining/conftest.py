"""A tiny encoder."""

from tests.encoding.conftest import _one_thread_one_seed, model_folder, tokenizer_dir

__all__ = ["_one_thread_one_seed", "model_folder", "tokenizer_dir"]
