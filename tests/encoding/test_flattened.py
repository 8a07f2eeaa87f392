"""sentence-transformers without padding, on a stand-in for FlashAttention: each text is encoded by itself."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import modeling_flash_attention_utils as flash_utils

from neobert.export.run import export
from tests.export.conftest import leave_unread


def attend_each_text(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options: Any
) -> Tensor:
    """Attend as `flash_attn_varlen_func` does: q, k, v [T, N, H]."""
    assert torch.equal(cu_seqlens_q, cu_seqlens_k)
    assert not options["causal"]
    bounds = cu_seqlens_q.tolist()
    parts = []
    for start, end in pairwise(bounds):
        rows = (x[start:end].transpose(0, 1)[None] for x in (q, k, v))
        parts.append(F.scaled_dot_product_attention(*rows, scale=options["softmax_scale"])[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers believe that FlashAttention 2 is there."""
    functions = (None, attend_each_text, None, flash_utils._pad_input, flash_utils._unpad_input)
    monkeypatch.setattr(flash_utils, "_lazy_imports", lambda *_, **__: functions)
    monkeypatch.setattr(flash_utils, "_loaded_implementation", None)
    monkeypatch.setattr(
        "transformers.modeling_utils.PreTrainedModel._flash_attn_can_dispatch", lambda *_, **__: True
    )


@pytest.mark.usefixtures("stand_in")
def test_flattened_texts_are_encoded_each_by_itself(model_folder, tmp_path, one_by_one, monkeypatch):
    sentence_transformers = pytest.importorskip("sentence_transformers")  # takes a second to import
    leave_unread(monkeypatch)  # tests/export reads such folders
    export([model_folder], ["sentence-transformers"], tmp_path / "out", None)
    folder = str(tmp_path / "out" / "sentence-transformers")
    options = {"attn_implementation": "flash_attention_2"}
    model = sentence_transformers.SentenceTransformer(
        folder, device="cpu", trust_remote_code=True, model_kwargs=options
    )
    assert model[0].can_flatten_inputs
    texts = ["the model reads text", "a", "b c a b c a", "the text"]
    np.testing.assert_allclose(model.encode(texts), one_by_one(model_folder, texts), atol=1e-5)
