"""The benchmark of sharded decoders, on two ranks of a CPU and then on one."""

from __future__ import annotations

import json
import random
import sys
from math import inf

import fully_sharded
import pytest
from fully_sharded import Layout, apart, quiet_rate

RUN_FILE = """
profile: causal-demo
model: {{hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}}
tokenizer: {{vocab_size: 300}}
dataset: {{path: {text}, cache_dir: {cache}, max_seq_length: 64, validation_split: null}}
optimizer: {{name: adamw, lr: 1.0e-3}}
trainer:
  per_device_train_batch_size: 1
  gradient_accumulation_steps: 1
  max_steps: 100000
  eval_steps: 0
  logging_steps: 1
"""


@pytest.mark.e2e
def test_a_killed_run_continues_on_another_number_of_ranks(tmp_path, monkeypatch):
    draw = random.Random(0)
    lines = [
        " ".join(draw.choices(["a", "bad", "cab", "did", "fade", "each", "gag", "high"], k=12))
        for _ in range(400)
    ]
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(lines), encoding="utf-8")
    run_file = tmp_path / "run.yaml"
    run_file.write_text(RUN_FILE.format(text=text, cache=tmp_path / "cache"), encoding="utf-8")
    options = [run_file, tmp_path / "work", "--sessions", "2", "1", "--saves", "1", "--save-steps", "4"]
    monkeypatch.setattr(
        sys, "argv", [*map(str, ["fully_sharded", *options, "--steps", "3", "--name", "toy"])]
    )
    fully_sharded.main()
    found = json.loads((tmp_path / "work" / "toy.json").read_text(encoding="utf-8"))
    first, second = found["detail"]["sessions"].values()
    assert first["problem"] is None
    assert first["saves"][0]["step"] == 4
    assert set(first["host_mib"]) == {"0", "1"}
    assert second["resumed_step"] >= 4
    assert [row["step"] for row in second["rows"]][:2] == [second["resumed_step"] + n for n in (1, 2)]
    assert second["losses"]["steps"] >= 1
    assert second["losses"]["largest"] < 1e-5
    reading = found["detail"]["reading"]
    assert (reading["differing"], reading["tensors"]) == ([], 12)
    assert reading["buffers"]
    assert all(reading["buffers"].values())
    assert "is_complete" not in found


def test_rates_are_those_of_steps_before_a_save_and_after_the_first():
    rows = [
        {"step": step, "train/tokens_per_sec": 100.0 if 16 <= step <= 20 else 1.0} for step in range(11, 30)
    ]
    assert quiet_rate(rows, 10) == 100.0
    assert quiet_rate(rows[:3], 10) is None
    assert quiet_rate([], 0) is None


def test_losses_are_compared_at_equal_steps():
    one = [{"step": step, "train/loss": 2.0} for step in (4, 5)]
    other = [{"step": 5, "train/loss": 2.2}, {"step": 6, "train/loss": inf}]
    assert apart(other, one) == {
        "steps": 1,
        "largest": pytest.approx(0.1),
        "by_step": {5: pytest.approx(0.1)},
    }


def test_every_layout_has_the_same_microbatches_in_a_step():
    keys = {text: Layout.of(text).keys(8) for text in ("1", "2", "4", "2x2")}
    ranks = {text: each["distributed.nproc_per_node"] for text, each in keys.items()}
    assert ranks == {"1": 1, "2": 2, "4": 4, "2x2": 4}
    assert {each["trainer.gradient_accumulation_steps"] * ranks[text] for text, each in keys.items()} == {8}
    assert keys["2x2"]["distributed.replicas"] == 2
