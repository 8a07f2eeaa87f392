"""What the pretraining task tells the loop about its microbatches."""

from types import SimpleNamespace

import pytest
import torch

from neobert.config import from_dict
from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.windows import Cursor
from neobert.errors import ProjectError
from neobert.families.table import model_shape
from neobert.plan.size import flops_per_token
from neobert.tasks.rank_data import describe_batch, segment_lengths
from neobert.tasks.token_task import TokenData
from neobert.tasks.weights import num_embedding_rows

VOCAB = 256


def batch(lengths, num_targets, *, is_packed=True):
    total = sum(lengths)
    ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist(), 64, 64], dtype=torch.int32)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    empty = torch.zeros(64, dtype=torch.int64)
    return Microbatch(
        input_ids=empty,
        labels=empty,
        position_ids=empty,
        cu_seqlens=ends if is_packed else None,
        attention_mask=None if is_packed else mask,
        max_seqlen=32,
        num_tokens=total,
        num_targets=num_targets,
        num_segments=len(lengths),
        sample_ids=torch.arange(len(lengths)) + 7,
        groups=torch.arange(len(lengths) + 2),
        cursor=Cursor(1, 2, 3),
    )


def data(**trainer):
    config = from_dict({"trainer": trainer})
    world = SimpleNamespace(rank=0, size=1)
    targets_only = config.trainer.masked_logits_only_loss
    return TokenData(config, SimpleNamespace(), world, VOCAB, targets_only=targets_only), config


@pytest.mark.parametrize("is_packed", [True, False])
def test_padding_earns_no_flops(is_packed):
    assert segment_lengths(batch([5, 20, 3], 4, is_packed=is_packed)).tolist() == [5, 20, 3]


@pytest.mark.parametrize("masked_only", [True, False])
def test_flops_are_the_plans_where_its_assumptions_hold(masked_only):
    """For equal segments, and the configured share of targets, both count the same."""
    of_rank, config = data(masked_logits_only_loss=masked_only)
    predicted = flops_per_token(config, model_shape(config, VOCAB), segment=10) * 40
    assert of_rank.flops(batch([10] * 4, num_targets=8)) == pytest.approx(predicted)


def test_a_batch_is_found_again_by_its_samples():
    words = describe_batch(batch([5, 20], 4))
    assert words["sample_ids"].tolist() == [7, 8]
    assert words["next"] == {"epoch": 1, "window": 2, "index": 3, "stream": None, "packer": 4}


TOKENIZER = SimpleNamespace(vocab_size=256, num_tokens=250)


@pytest.mark.parametrize(("requested", "rows"), [(None, 256), (256, 256), (512, 512)])
def test_the_embedding_has_room_for_the_tokenizer(requested, rows):
    assert num_embedding_rows(from_dict({"model": {"vocab_size": requested}}), TOKENIZER) == rows


@pytest.mark.parametrize(
    ("requested", "weights", "least"), [(128, None, 256), (250, None, 256), (249, "some/folder", 250)]
)
def test_a_smaller_embedding_is_refused(requested, weights, least):
    config = from_dict({"model": {"vocab_size": requested, "pretrained_checkpoint": weights}})
    with pytest.raises(ProjectError, match=f"is {requested}, but the tokenizer has {least} tokens") as error:
        num_embedding_rows(config, TOKENIZER)
    assert error.value.code == "MOD002"


@pytest.mark.parametrize("requested", [250, 256])
def test_published_weights_need_no_rows_for_inert_tokens(requested):
    """Those of NeoBERT have 30,522, a number that is no multiple of 128."""
    config = from_dict({"model": {"vocab_size": requested, "pretrained_checkpoint": "some/folder"}})
    assert num_embedding_rows(config, TOKENIZER) == requested
