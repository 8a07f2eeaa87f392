"""Reader of model.gguf with llama.cpp, through its Python binding xllamacpp."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import xllamacpp

DISTRIBUTIONS = ("xllamacpp", "gguf")
UNNORMALIZED = -1
"""Value of embd_normalize for embeddings without normalization."""


def read(folder: str, texts: list[str]) -> dict[str, np.ndarray]:
    """Return embeddings for the texts, and for their token ids from token_ids.json.

    Raises `RuntimeError` if llama.cpp rejects a text.
    """
    ids = json.loads(Path("token_ids.json").read_text(encoding="utf-8"))
    server = xllamacpp.Server(server_parameters(folder, max(map(len, ids)) + 8))
    outputs = {"pooled": embed(server, ids), "pooled, of texts": embed(server, texts)}
    del server
    return outputs


def server_parameters(folder: str, max_row_length: int) -> xllamacpp.CommonParams:
    """Return parameters of a CPU server that embeds one row of up to `max_row_length` tokens at a time."""
    params = xllamacpp.CommonParams()
    params.model.path = str(Path(folder, "model.gguf"))
    params.embedding, params.warmup, params.n_parallel, params.n_gpu_layers = True, False, 1, 0
    params.n_ctx = params.n_batch = params.n_ubatch = max_row_length
    params.embd_normalize = UNNORMALIZED
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return params


def embed(server: xllamacpp.Server, rows: list[Any]) -> np.ndarray:
    """Return one embedding per row, fp32 [rows, D]. Raises `RuntimeError` if llama.cpp rejects a row."""
    vectors = []
    for row in rows:
        answer = server.handle_embeddings({"input": row, "model": "model", "embd_normalize": UNNORMALIZED})
        if "data" not in answer:
            raise RuntimeError(f"llama.cpp rejected a row: {answer}")
        vectors.append(answer["data"][0]["embedding"])
    return np.array(vectors, dtype=np.float32)
