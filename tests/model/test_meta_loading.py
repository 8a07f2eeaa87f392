"""Loading over the meta device, as transformers 5 does, changes nothing: the model has no buffers to lose.

The published NeoBERT keeps its rotations in a buffer that is not saved, `freqs_cis`. transformers 5 builds a
model on the meta device and fills what the checkpoint holds: this buffer becomes uninitialised memory.
"""

from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel

from neobert.model import NeoBERT, NeoBERTConfig, NeoBERTForSequenceClassification, NeoBERTLMHead
from neobert.model.modeling_neobert import (
    NeoBERTForMultipleChoice,
    NeoBERTForQuestionAnswering,
    NeoBERTForTokenClassification,
)

HEADS = (
    NeoBERT, NeoBERTLMHead, NeoBERTForSequenceClassification, NeoBERTForTokenClassification,
    NeoBERTForQuestionAnswering, NeoBERTForMultipleChoice,
)  # fmt: skip


class WithBuffer(PreTrainedModel):
    """The construction of the published model: rotations in a buffer that is not saved."""

    config_class = NeoBERTConfig

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.linear = torch.nn.Linear(2, 2)
        self.register_buffer("freqs_cis", rotations(), persistent=False)
        self.post_init()


def rotations() -> torch.Tensor:
    return torch.polar(
        torch.ones(64, 8), torch.outer(torch.arange(64.0), 10_000.0 ** (-torch.arange(8.0) / 8))
    )


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.__name__)
def test_no_head_has_a_buffer(make_config, head):
    assert [name for name, _ in head(make_config()).named_buffers()] == []


def test_ten_loads_compute_the_same_bits(make_model, tmp_path):
    model, ids = make_model(), torch.randint(5, 96, (2, 60))
    wanted = model(ids).logits
    model.save_pretrained(tmp_path)
    for _ in range(10):
        loaded = NeoBERTLMHead.from_pretrained(tmp_path).eval()
        assert torch.equal(loaded(ids).logits, wanted)


@pytest.fixture
def uninitialised_is_nan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill memory without values with NaN: it may hold by chance what was there before."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.usefixtures("uninitialised_is_nan")
def test_a_buffer_that_is_not_saved_would_not_survive(make_config, tmp_path):
    WithBuffer(make_config()).save_pretrained(tmp_path)
    loaded = WithBuffer.from_pretrained(tmp_path).freqs_cis
    if torch.equal(loaded, rotations()):
        pytest.skip("this release of transformers restores buffers that are not saved")
    assert loaded.isnan().all()
