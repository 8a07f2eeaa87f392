"""Both sides of the comparison on a CPU: a run does not depend on the ones before it, and masks are fair."""

from __future__ import annotations

import json
import sys

import held_out
import made_up_run
import numpy as np
import own_trainer
import peer_trainer
import pytest
import torch
import trials
from held_out import MASK_ID, NUM_SPECIAL


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(own_trainer, "ROW_LENGTH", 128)
    monkeypatch.setattr(held_out, "WIDTH", 128)
    monkeypatch.setitem(own_trainer.SIZES, "tiny", (1, 64))
    made_up_run.write_tokenizer(tmp_path / "tokenizer")
    made_up_run.write_documents(tmp_path / "train.jsonl", 8_000)
    ids = np.arange(NUM_SPECIAL, NUM_SPECIAL + 40, dtype=np.uint16)
    np.savez(tmp_path / "passages.npz", held_out=ids, held_out_offsets=np.array([0, 40]))
    return tmp_path


RECIPE = {
    "model": {"init": "scaled", "embedding_multiplier": 22.6},
    "optimizer": trials.RECIPE["optimizer"],
    "scheduler": trials.RECIPE["scheduler"],
    "trainer": {"sequence_length_warmup_steps": 2, "sequence_length_warmup_length": 64},
}
"""The published one, without what needs a GPU."""


def trained(work, monkeypatch, *trials: dict[str, int]) -> list[dict]:
    """Return the lines that this side writes for trials of a tiny model."""
    (work / "trials.json").write_text(json.dumps(trials))
    words = [work, work / "trials.json", "--size", "tiny", "--rows", 2, "--config", json.dumps(RECIPE)]
    output = work / "own.jsonl"
    monkeypatch.setattr(sys, "argv", list(map(str, ["program", *words, "--output", output])))
    own_trainer.main()
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_a_run_does_not_depend_on_those_before_it(work, monkeypatch):
    runs = [{"steps": 5, "seed": seed} for seed in (0, 1, 0)]
    first, other, second = trained(work, monkeypatch, *runs)
    same = ("loss", "tokens", "train_losses")
    assert [first[key] for key in same] == [second[key] for key in same]
    assert first["seconds"] > 0
    assert other["loss"] != first["loss"]


def test_the_peer_masks_a_fixed_number_of_tokens_and_no_marker():
    rows = [np.array([101, *range(2_000, 2_062), 102])] * 4
    batch = peer_trainer.Masking(0.3)(rows)
    labels, inputs = batch["labels"].flatten(), batch["input_ids"].flatten()
    original, chosen = torch.from_numpy(np.concatenate(rows)), labels != peer_trainer.IGNORED
    assert int(chosen.sum()) == int(0.3 * 256)
    assert bool((original[chosen] >= NUM_SPECIAL).all())
    assert bool((labels[chosen] == original[chosen]).all())
    assert bool((inputs[~chosen] == original[~chosen]).all())
    assert int((inputs == MASK_ID).sum()) == int(0.8 * 76)


def test_the_peer_has_the_rotary_positions_of_short_rows():
    frequencies = dict(peer_trainer.build("tiny").named_buffers())["model.rotary_emb.full_attention_inv_freq"]
    assert float(frequencies[1]) == pytest.approx(10_000 ** (-2 / 64))


@pytest.fixture
def peer(work, monkeypatch):
    """The peer after its warm-up, in one layer."""
    monkeypatch.setattr(peer_trainer, "ROW_LENGTH", 128)
    ids = np.random.default_rng(0).integers(NUM_SPECIAL, 30_000, 1_280).astype(np.uint16)
    arrays = dict.fromkeys(("train", "held_out", "test"), ids)
    offsets = {f"{side}_offsets": np.arange(0, 1_281, 128) for side in arrays}
    np.savez(work / "passages.npz", **arrays, **offsets)
    return peer_trainer.compiled(work, "tiny", 2)


def test_a_run_of_the_peer_does_not_depend_on_those_before_it(peer):
    assert set(peer.kernels["attention"]) == {"flash"}
    plain = {**peer_trainer.BASE, "steps": 6}
    muon = plain | {"optimizer": "muon", "lr": 4e-3, "adam_lr": 2e-3}
    found = [
        {**peer.train(recipe), **peer.evaluate()}
        for recipe in (plain, muon, plain, plain | {"optimizer": "muon", "lr": 4e-3})
    ]
    first, by_muon, again, faster = (run["train_losses"] for run in found)
    assert first == again
    assert first[0] == by_muon[0]
    assert len({each[-1] for each in (first, by_muon, faster)}) == 3, "both rates of Muon count"
    assert found[0]["loss"] == found[2]["loss"] != found[1]["loss"]
    assert found[0]["test_loss"] > 0
