"""The parts of a rehearsal: which steps, which batch, which keys, which documents."""

from dataclasses import replace as replaced
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neobert.config import digest, replace, to_dict
from neobert.config.schedules import masking_rates
from neobert.config.schema import RunConfig
from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.windows import Cursor
from neobert.data.store.prepared_data import PreparedData
from neobert.data.store.token_store import LengthStatistics, TokenStore
from neobert.errors import ProjectError
from neobert.objectives.objective import max_targets
from neobert.rehearsal.measurements import record_config_reads, record_product_flops, train_eval_overlap
from neobert.rehearsal.script import plan_rehearsal, rehearsal_values
from neobert.rehearsal.trials import adversarial_lengths, fill_with_text, with_fewer_targets
from neobert.tasks.token_task import with_most_targets

CONFIG = RunConfig()
RATES = masking_rates(CONFIG.datacollator)


@given(st.integers(7, 100_000))
def test_the_script_fits_into_the_run(max_steps):
    script = plan_rehearsal(max_steps)
    assert 1 <= script.compared <= 4
    assert script.total <= max_steps
    assert script.total == script.saved + 2 * script.compared
    assert script.saved % script.compared == 0


def test_a_run_of_a_few_steps_is_not_rehearsed():
    with pytest.raises(ProjectError, match="too few for a rehearsal"):
        plan_rehearsal(6)


def test_only_the_run_that_is_killed_first_starts_afresh(tmp_path):
    script = plan_rehearsal(1000)
    fresh = rehearsal_values(CONFIG, tmp_path, script, is_resumed=False)
    resumed = rehearsal_values(CONFIG, tmp_path, script, is_resumed=True)
    assert (fresh["trainer.resume_from_checkpoint"], fresh["trainer.save_steps"]) == ("never", 20)
    assert (resumed["trainer.resume_from_checkpoint"], resumed["trainer.save_steps"]) == ("auto", 4)


@given(st.integers(1, 64), st.integers(1, 16), st.integers(0, 200))
def test_the_worst_documents_fill_the_microbatch(longest, rows, more_slots):
    total, slots = longest * rows, rows + more_slots
    lengths = adversarial_lengths(total, slots, longest)
    assert sum(lengths) == total
    assert max(lengths) == longest
    assert min(lengths) >= 1
    assert len(lengths) <= slots


def test_the_slots_that_are_left_are_all_used():
    lengths = adversarial_lengths(1024, 100, 128)
    assert lengths[:4] == [128] * 4
    assert len(lengths) == 100


def packed(num_tokens: int, slots: int, longest: int) -> Microbatch:
    return Microbatch(
        input_ids=torch.arange(num_tokens) % 7 + 3,
        labels=torch.full((num_tokens,), -100),
        position_ids=torch.zeros(num_tokens, dtype=torch.int64),
        cu_seqlens=torch.full((slots + 1,), num_tokens, dtype=torch.int32),
        attention_mask=None,
        max_seqlen=longest,
        num_tokens=num_tokens // 2,
        num_targets=0,
        num_segments=1,
        sample_ids=torch.arange(1),
        groups=torch.arange(slots),
        cursor=Cursor(),
    )


def worst_case(batch: Microbatch, rows: int, capacity: int | None) -> Microbatch:
    objective = SimpleNamespace(capacity=capacity, eval_capacity=None)
    return with_most_targets(objective, RATES, fill_with_text(batch, rows), is_training=True)


@pytest.mark.parametrize(("capacity", "num_targets"), [(64, 64), (None, max_targets(256, 0.2))])
def test_the_worst_packed_batch_keeps_every_shape(capacity, num_targets):
    batch = packed(256, 40, 32)
    worst = worst_case(batch, 8, capacity)
    for name in ("input_ids", "labels", "position_ids", "cu_seqlens"):
        before, after = getattr(batch, name), getattr(worst, name)
        assert (after.shape, after.dtype) == (before.shape, before.dtype)
    assert (worst.num_tokens, worst.num_targets, worst.max_seqlen) == (256, num_targets, 32)
    lengths = worst.cu_seqlens.diff()
    assert int(lengths.max()) == 32
    assert int((lengths > 0).sum()) == worst.num_segments == 40
    assert bool((worst.position_ids[worst.cu_seqlens[:40].long()] == 0).all())


def test_the_worst_padded_batch_has_every_row_full():
    ids = torch.tensor([[5, 6, 0], [7, 0, 0]])
    batch = Microbatch(
        input_ids=ids,
        labels=torch.full_like(ids, -100),
        position_ids=torch.zeros_like(ids),
        cu_seqlens=None,
        attention_mask=ids > 0,
        max_seqlen=16,
        num_tokens=3,
        num_targets=0,
        num_segments=2,
        sample_ids=torch.arange(2),
        groups=torch.arange(2),
        cursor=Cursor(),
    )
    worst = worst_case(batch, 4, None)
    assert worst.input_ids.shape == worst.labels.shape == worst.attention_mask.shape == (4, 16)
    assert bool(worst.attention_mask.all())
    assert set(worst.input_ids.flatten().tolist()) == {5, 6, 7}
    assert worst.num_targets == max_targets(64, 0.2)


@pytest.mark.parametrize("is_score", [True, False])
def test_labels_of_rows_are_thinned_out_as_those_of_tokens(is_score):
    labels = torch.tensor([0.0, 1, 2, 3, torch.nan]) if is_score else torch.tensor([0, 1, 2, 3, -100])
    found = with_fewer_targets(replaced(packed(64, 5, 16), labels=labels, num_targets=4), 3)
    kept = ~found.labels.isnan() if is_score else found.labels >= 0
    assert kept.tolist() == [True, False, False, True, False]
    assert (found.num_targets, found.labels.dtype) == (2, labels.dtype)
    assert torch.equal(found.labels[kept], labels[kept])


def test_reads_are_those_of_the_program_alone():
    with record_config_reads() as seen:
        to_dict(CONFIG)
        digest(CONFIG)
        assert replace(CONFIG, "seed", 3) != CONFIG
        assert seen == set()
        _ = CONFIG.trainer.max_steps
        assert seen == {"trainer.max_steps"}
        masking_rates(CONFIG.datacollator)
        assert "datacollator.mlm_probability" in seen
    seen.clear()
    _ = CONFIG.seed
    assert seen == set()


def test_products_are_counted_by_what_goes_into_them():
    left, right = torch.randn(4, 8), torch.randn(8, 2)
    with record_product_flops() as flops:
        left @ right
        with torch.autocast("cpu", dtype=torch.bfloat16):
            left @ right
            torch.nn.functional.linear(left, right.t(), torch.zeros(2))
    assert flops == {"float32": 128.0, "bfloat16": 256.0}


def store(*documents: list[int]) -> TokenStore:
    lengths = np.array([len(document) for document in documents])
    tokens = np.concatenate([np.array(document, dtype=np.uint16) for document in documents])
    return TokenStore(
        tokens, np.concatenate(([0], np.cumsum(lengths))), LengthStatistics.from_lengths(lengths)
    )


def prepared(train: TokenStore, evaluation: TokenStore | None, tmp_path) -> PreparedData:
    return PreparedData(tmp_path, train, evaluation, None, "", {})


def test_the_overlap_is_counted_in_tokens(tmp_path):
    train = store([1, 2, 3], [4, 5], [6])
    found = train_eval_overlap(prepared(train, store([1, 2, 3], [7]), tmp_path))
    assert found == {"eval_documents": 2, "train_documents": 3, "shared_share": 0.75}
    assert train_eval_overlap(prepared(train, store([1, 2], [7]), tmp_path))["shared_share"] == 0.0
    assert train_eval_overlap(prepared(train, None, tmp_path)) is None
