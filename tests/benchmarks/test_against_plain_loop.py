"""The plain loop learns on a CPU, in both forms of rows, and is compared with this trainer seed by seed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import against_plain_loop
import held_out
import numpy as np
import peer_trainer
import plain_loop
import pytest
from held_out import NUM_SPECIAL
from model_sizes import SIZES
from trials import result_path


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Passages of 20 to 60 tokens, of 30 kinds of tokens, each of which comes twice."""
    monkeypatch.setattr(held_out, "WIDTH", 64)
    monkeypatch.setattr(plain_loop, "ROW_LENGTH", 64)
    monkeypatch.setattr(plain_loop, "VOCABULARY", NUM_SPECIAL + 30)
    monkeypatch.setattr(peer_trainer, "NUM_TOKENS", NUM_SPECIAL + 30)
    monkeypatch.setitem(SIZES, "tiny", (1, 64))
    draw, arrays = np.random.default_rng(0), {}
    for side, count in (("train", 300), ("held_out", 20)):
        found = [
            np.repeat(draw.integers(NUM_SPECIAL, NUM_SPECIAL + 30, draw.integers(10, 30)), 2)
            for _ in range(count)
        ]
        arrays[side] = np.concatenate(found).astype(np.uint16)
        arrays[f"{side}_offsets"] = np.cumsum([0, *map(len, found)])
    np.savez(tmp_path / "passages.npz", **arrays)
    return tmp_path


def trained(work, monkeypatch, form: str, *more: object) -> dict[str, float]:
    words = [work, "--form", form, "--init", "scaled", "--size", "tiny", "--rows", 8, "--steps", 100]
    words += [*more, "--output", work / "found.jsonl"]
    monkeypatch.setattr(sys, "argv", ["plain_loop.py", *map(str, words)])
    plain_loop.main()
    return json.loads((work / "found.jsonl").read_text().splitlines()[-1])


def test_the_loop_learns_from_equally_many_tokens_of_either_form(work, monkeypatch):
    passages, concatenated = (trained(work, monkeypatch, form) for form in plain_loop.FORMS)
    assert passages["tokens"] == pytest.approx(concatenated["tokens"], rel=0.02)
    assert concatenated["tokens"] == 100 * 8 * 64
    for found in (passages, concatenated):
        assert found["loss"] < np.log(30) + 0.2
        assert len(found["train_losses"]) == 20
        assert found["loss_in_full_rows"] != found["loss"]


def test_a_capped_run_is_another_run_of_the_same_tokens(work, monkeypatch):
    plain, capped = (
        trained(work, monkeypatch, "passages", "--steps", 20, *more) for more in ((), ("--softcap", 3.0))
    )
    assert plain["tokens"] == capped["tokens"]
    assert plain["loss"] != capped["loss"]


def test_padding_does_not_raise_the_share_of_masked_tokens(work):
    rows = list(held_out.padded_rows(work / "passages.npz", "train"))
    num_tokens = sum(int((row != held_out.PAD_ID).sum()) for row in rows)
    assert num_tokens < 0.8 * sum(map(len, rows))
    labels = peer_trainer.Masking(0.2)(rows)["labels"]
    assert int((labels != peer_trainer.IGNORED).sum()) == int(0.2 * num_tokens)


def test_a_difference_is_that_of_the_seeds_of_both_sides(tmp_path):
    chosen = argparse.Namespace(
        work=tmp_path, results=tmp_path, output=tmp_path / "out", size="tiny", steps=20
    )
    losses = {"trainer": 3.0, "passages": 3.1, "concatenated": 3.3, "softcap": 3.2, "microbatches": 3.0}
    for each in against_plain_loop.wanted(chosen):
        side = each.name.removeprefix("plain-").split("-")[0]
        if "published" not in each.name or side != "passages":
            line = {"loss": losses[side], "seconds": 1.0, "tokens": 10}
            result_path(tmp_path, each.name).write_text(each.num_runs * (json.dumps(line) + "\n"))
    text = against_plain_loop.report(chosen)
    assert "scaled, trainer: -0.100 (-0.100 to -0.100)" in text
    assert "scaled, isolation: -0.200 (-0.200 to -0.200)" in text
    assert "scaled, softcap: +0.100" in text
    assert "published, passages: not run" in text
    written = json.loads((tmp_path / "out" / "plain-loop.json").read_text())
    assert (written["value"], written["is_complete"]) == (None, False)


def test_the_page_has_the_runs_that_are_kept():
    root = Path(__file__).parents[2]
    kept = root / "docs" / "measurements" / "learning-runs"
    page = " ".join((root / "docs" / "learning.md").read_text("utf-8").split())
    chosen = argparse.Namespace(work=root, results=kept, size="53M", steps=600)
    for found in against_plain_loop.judge(chosen).values():
        for runs in found["runs"].values():
            assert ", ".join(f"{run['loss']:.3f}" for run in runs) in page
        for each in filter(None, found["differences"].values()):
            low, high = each["interval"]
            assert f"{each['mean']:+.3f} ({low:+.3f} to {high:+.3f})" in page
