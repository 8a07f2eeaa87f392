from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DataCollatorForLanguageModeling

from neobert.data.batches.masking import MaskingRule, mask_tokens
from neobert.data.batches.targets import IGNORED

VOCAB_SIZE, MASK_ID = 500, 4
SPECIAL = (0, 1, 2, 3, 4, 498, 499)


def rule(probability: float = 0.2, *, mask_all: bool = False) -> MaskingRule:
    is_maskable = ~np.isin(np.arange(VOCAB_SIZE), SPECIAL)
    return MaskingRule(probability, mask_all, MASK_ID, np.flatnonzero(is_maskable), is_maskable)


def tokens(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, specials among them, with samples of 50 tokens."""
    ids = np.random.default_rng(seed).integers(0, VOCAB_SIZE, count)
    return ids, np.arange(count) // 50, np.arange(count) % 50


@given(
    st.integers(0, 2**63),
    st.integers(-1, 1000),
    st.floats(0.01, 1.0),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_what_is_masked_is_a_function_of_seed_epoch_sample_and_position(seed, epoch, share, mask_all, order):
    ids, samples, positions = tokens(400)
    fixed = {"epoch": epoch, "seed": seed, "rule": rule(share, mask_all=mask_all)}
    inputs, labels = mask_tokens(ids, samples, positions, **fixed)
    shuffled = np.random.default_rng(order).permutation(400)[:150]
    some = mask_tokens(ids[shuffled], samples[shuffled], positions[shuffled], **fixed)
    assert np.array_equal(some[0], inputs[shuffled])
    assert np.array_equal(some[1], labels[shuffled])


@given(st.floats(0.001, 1.0), st.booleans(), st.integers(0, 100))
def test_special_and_inert_tokens_are_never_chosen_and_never_drawn(share, mask_all, seed):
    ids, samples, positions = tokens(2000, seed)
    inputs, labels = mask_tokens(
        ids, samples, positions, epoch=0, seed=seed, rule=rule(share, mask_all=mask_all)
    )
    is_special = np.isin(ids, SPECIAL)
    assert (labels[is_special] == IGNORED).all()
    assert np.array_equal(inputs[is_special], ids[is_special])
    is_target = labels != IGNORED
    assert np.array_equal(labels[is_target], ids[is_target])
    assert np.array_equal(inputs[~is_target], ids[~is_target])
    assert not np.isin(inputs[is_target], [special for special in SPECIAL if special != MASK_ID]).any()


def test_a_share_of_one_predicts_everything_and_mask_all_masks_it():
    ids, samples, positions = tokens(1000)
    inputs, labels = mask_tokens(ids, samples, positions, epoch=0, seed=0, rule=rule(1.0, mask_all=True))
    is_special = np.isin(ids, SPECIAL)
    assert np.array_equal(labels != IGNORED, ~is_special)
    assert (inputs[~is_special] == MASK_ID).all()


@pytest.mark.parametrize("change", [{"seed": 1}, {"epoch": 1}, {"samples": 1}, {"positions": 1}])
def test_each_part_of_the_key_changes_the_draw(change):
    ids, samples, positions = tokens(5000)

    def chosen(seed: int = 0, epoch: int = 0, samples_by: int = 0, positions_by: int = 0) -> np.ndarray:
        drawn = mask_tokens(
            ids, samples + samples_by, positions + positions_by, epoch=epoch, seed=seed, rule=rule()
        )
        return drawn[1] != IGNORED

    renamed = {{"samples": "samples_by", "positions": "positions_by"}.get(k, k): v for k, v in change.items()}
    both = (chosen() & chosen(**renamed)).mean()
    assert abs(both - 0.04 * (1 - len(SPECIAL) / VOCAB_SIZE)) < 0.01, "two draws should be independent"


def shares(inputs: np.ndarray, labels: np.ndarray, maskable: int) -> Counter[str]:
    is_target = labels != IGNORED
    kept, masked = inputs[is_target] == labels[is_target], inputs[is_target] == MASK_ID
    total = int(is_target.sum())
    return Counter(
        chosen=total / maskable,
        masked=float(masked.mean()),
        kept=float(kept.mean()),
        random=float((~kept & ~masked).mean()),
    )


@pytest.mark.parametrize("share", [0.15, 0.2, 0.5])
def test_the_proportions_are_those_of_the_reference_collator(share, tokenizer_dir):
    """Both sides draw 200,000 tokens: a proportion is off by 0.005 in less than one run of a thousand."""
    from transformers import AutoTokenizer

    count = 200_000
    ids = np.random.default_rng(1).integers(5, 498, count)
    ours = mask_tokens(
        ids, np.arange(count) // 100, np.arange(count) % 100, epoch=0, seed=7, rule=rule(share)
    )
    collator = DataCollatorForLanguageModeling(
        AutoTokenizer.from_pretrained(tokenizer_dir), mlm_probability=share, seed=3
    )
    collator.create_rng()
    rows = torch.from_numpy(ids.copy()).reshape(-1, 100)
    reference = collator.torch_mask_tokens(rows, special_tokens_mask=torch.zeros_like(rows))
    theirs = shares(reference[0].numpy().ravel(), reference[1].numpy().ravel(), count)
    for name, value in shares(*ours, count).items():
        assert value == pytest.approx(theirs[name], abs=0.012), name
        expected = {"chosen": share, "masked": 0.8, "kept": 0.1, "random": 0.1}[name]
        assert value == pytest.approx(expected, abs=0.008), name


def test_random_tokens_are_drawn_evenly():
    ids = np.full(300_000, 10)
    inputs, labels = mask_tokens(
        ids, np.arange(300_000), np.zeros(300_000, np.int64), epoch=0, seed=0, rule=rule(1.0)
    )
    drawn = inputs[(labels != IGNORED) & (inputs != MASK_ID) & (inputs != 10)]
    counts = np.bincount(drawn, minlength=VOCAB_SIZE)
    expected = len(drawn) / (VOCAB_SIZE - len(SPECIAL) - 1)
    assert counts[list(SPECIAL)].sum() == 0
    assert counts[5:498].max() < 2 * expected
    assert (np.delete(counts, [10, *SPECIAL]) > 0).all()
