"""The soak of native sparse attention, on a CPU."""

from __future__ import annotations

import json
import random
import sys

import pytest
import sparse_soak

RUN_FILE = """
profile: causal-demo
model: {{type: nsa, hidden_size: 32, num_hidden_layers: 1, num_heads: 16, num_kv_heads: 1, head_dim: 4,
         intermediate_size: 48, block_size: 8, block_counts: 4, window_size: 11}}
tokenizer: {{vocab_size: 300}}
dataset: {{path: {text}, cache_dir: {cache}, max_seq_length: 64, validation_split: null}}
optimizer: {{name: adamw, lr: 1.0e-3}}
guard: {{on_degradation: stop}}
trainer: {{per_device_train_batch_size: 1, gradient_accumulation_steps: 1, eval_steps: 0}}
"""


@pytest.mark.e2e
def test_a_run_is_killed_and_continues_and_a_dead_gate_ends_one(tmp_path, monkeypatch):
    draw = random.Random(0)
    words = ["a", "bad", "cab", "did", "fade", "each", "gag", "high"]
    text, run_file = tmp_path / "text.txt", tmp_path / "run.yaml"
    text.write_text("\n\n".join(" ".join(draw.choices(words, k=40)) for _ in range(400)), encoding="utf-8")
    run_file.write_text(RUN_FILE.format(text=text, cache=tmp_path / "cache"), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["sparse_soak", str(run_file), str(tmp_path / "work"), "--steps", "60"])
    sparse_soak.main()
    found = json.loads((tmp_path / "work" / "nsa-smoke.json").read_text(encoding="utf-8"))["detail"]
    run, dead = found["1 ranks"], found["dead gate"]
    assert (run["code"], len(run["restarts"]), run["health"]["lines"]) == (0, 1, 60)
    assert all(one == two is not None for one, two in run["next_step"].values())
    assert run["health"]["lines_with_other_reads"] == 0
    assert (dead["code"], dead["exit_code"]) == ("DGR002", 4)
