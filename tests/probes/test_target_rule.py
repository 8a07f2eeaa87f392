"""Labels of a target rule against the tokens of the text: shifts, and targets at the end of a text."""

import pytest
import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.data.batches.windows import Cursor
from neobert.probes.layout import with_lengths
from neobert.probes.target_rule import target_answers

LENGTHS = [7, 1, 12, 12]
IDS = torch.randint(5, 90, (32,), generator=torch.Generator().manual_seed(0))
NEXT, IS_LAST = IDS.roll(-1), torch.tensor([6, 7, 19, 31])


def batch(labels, ids=IDS) -> Microbatch:
    empty = Microbatch(
        input_ids=ids,
        labels=labels,
        position_ids=torch.zeros(32),
        cu_seqlens=torch.zeros(9, dtype=torch.int32),
        attention_mask=None,
        max_seqlen=16,
        num_tokens=32,
        num_targets=0,
        num_segments=1,
        sample_ids=torch.zeros(1),
        groups=torch.arange(8),
        cursor=Cursor(),
    )
    return with_lengths(empty, LENGTHS)


def values(labels, ids=IDS) -> dict[str, float]:
    return {answer.kind: answer.value for answer in target_answers(batch(labels, ids))}


def without_ends(labels):
    return labels.index_fill(0, IS_LAST, IGNORED)


@pytest.mark.parametrize(
    ("labels", "share"), [(NEXT, 1.0), (IDS, 0.0), (IDS.roll(-2), 0.0), (NEXT.roll(9), 0.0)]
)
def test_the_share_of_next_tokens(labels, share):
    assert values(without_ends(labels)) == {"next": share}


def test_equal_tokens_tell_nothing_of_a_shift():
    constant = torch.full_like(IDS, 5)
    assert values(without_ends(constant), constant) == {}


def test_targets_that_are_tokens_of_the_next_document():
    assert values(NEXT) == {"next": 1.0, "end": 0.0}
    assert values(NEXT.index_fill(0, IS_LAST, 3)) == {"next": 1.0, "end": 1.0}


def test_documents_that_begin_alike_tell_nothing_of_their_ends():
    ids = IDS.index_fill(0, torch.tensor([0, 7, 8, 20]), 1)
    assert values(ids.roll(-1), ids) == {"next": 1.0}
