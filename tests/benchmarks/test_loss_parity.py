"""Both forms of a step are the same documents under the same masks: in fp32 their losses agree."""

from __future__ import annotations

import random

import loss_parity
import pytest
import torch

from neobert.config import from_dict


@pytest.fixture
def config(tmp_path):
    """A run of eight steps on documents of 3 to 40 words."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=3)) for _ in range(60)]
    text = "\n\n".join(" ".join(draw.choices(words, k=draw.randint(3, 40))) for _ in range(200))
    (tmp_path / "text.txt").write_text(text)
    shape = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
    return from_dict(
        {
            "model": {**shape, "max_position_embeddings": 48},
            "tokenizer": {"vocab_size": 256},
            "dataset": {
                "path": str(tmp_path / "text.txt"),
                "max_seq_length": 48,
                "cache_dir": str(tmp_path / "cache"),
            },
            "scheduler": {"warmup_steps": 2},
            "optimizer": {"lr": 1e-2},
            "trainer": {"per_device_train_batch_size": 4, "max_steps": 8, "mixed_precision": "no"},
        }
    )


def sides(config, tmp_path):
    packed = loss_parity.losses("packed", config, tmp_path)
    torch.use_deterministic_algorithms(False)
    return packed, loss_parity.losses("unpacked", config, tmp_path)


def test_the_two_forms_agree_in_fp32(config, tmp_path, monkeypatch):
    monkeypatch.setattr(loss_parity, "WINDOW", 2)
    packed, unpacked = sides(config, tmp_path)
    found = loss_parity.compare(packed, unpacked)
    assert found["is_same_text"]
    assert found["largest_of_a_single_step"] < 1e-5
    assert packed["losses"][-1] < packed["losses"][0] - 0.1


def test_a_leak_between_documents_shows(config, tmp_path, monkeypatch):
    plain = loss_parity.padded

    def forgetful(batch, bounds, members):
        rows = plain(batch, bounds, members)
        return loss_parity.replace(rows, attention_mask=torch.ones_like(rows.attention_mask))

    monkeypatch.setattr(loss_parity, "padded", forgetful)
    monkeypatch.setattr(loss_parity, "WINDOW", 2)
    assert loss_parity.compare(*sides(config, tmp_path))["largest"] > 1e-4


def test_smoothing_averages_whole_windows():
    values = [float(value) for value in range(30)]
    smooth = loss_parity.smoothed(values)
    assert (len(smooth), smooth[0], smooth[-1]) == (21, 4.5, 24.5)
