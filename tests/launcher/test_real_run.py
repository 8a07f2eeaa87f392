"""The whole way once, with the real trainer: launch, stop, go on, finish; the history reads as one run."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]

RUN_FILE = """\
profile: cpu-demo
model: {hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64}
dataset: {name: null, path: text.txt, cache_dir: cache, max_seq_length: 32, eval_samples: 20, num_workers: 0}
tokenizer: {vocab_size: 256}
scheduler: {warmup_steps: 1}
trainer:
  output_dir: run
  max_steps: 40
  per_device_train_batch_size: 2
  per_device_eval_batch_size: 2
  save_steps: 5
  eval_steps: 20
  eval_max_batches: 1
  logging_steps: 1
"""


def history(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: row[name] for name in ("step", "train/loss", "eval/loss") if name in row} for row in rows]


def test_stopped_and_gone_on_with_it_is_the_run_that_never_stopped(
    start_child: Callable[..., Any], run_child: Callable[..., Any], command: Callable[..., Any]
) -> None:
    words = [f"document {number} speaks of {number % 7} things" for number in range(300)]
    Path("text.txt").write_text("\n\n".join(words), encoding="utf-8")
    Path("run.yaml").write_text(RUN_FILE, encoding="utf-8")

    in_whole = ("--set", "trainer.output_dir=whole", "--stages", "1,20")
    whole = run_child("train", "-c", "run.yaml", *in_whole, "--output-format", "json")
    assert whole.code == 0, whole.out + whole.err
    assert [line.partition(":")[0] for line in whole.err.splitlines() if line.startswith("stage")] == [
        "stage 1 passed",
        "stage 20 passed",
    ]
    assert whole.json["step"] == 40

    stopped = start_child("train", "@run.yaml", "--resume", "auto")
    deadline = time.monotonic() + 120
    while not any(Path("run").glob("checkpoints/[0-9]*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    stopped.send_signal(signal.SIGTERM)
    out, err = stopped.communicate(timeout=120)
    assert stopped.returncode in (0, 75), out + err

    again = run_child("train", "@run.yaml", "--resume", "auto")
    assert again.code == 0, again.out + again.err
    assert [row["step"] for row in history(Path("run"))] == list(range(41))
    assert history(Path("run")) == history(Path("whole"))
    assert "finished  step 40/40" in command("status", "run").out
