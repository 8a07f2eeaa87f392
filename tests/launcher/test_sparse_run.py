"""A model with native sparse attention by the command line: started, killed, resumed, scored, exported."""

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]

MODEL = """\
model: {type: nsa, hidden_size: 32, num_hidden_layers: 2, num_heads: 32, num_kv_heads: 2, head_dim: 4,
        intermediate_size: 48, block_size: 8, block_counts: 4, window_size: 11}

"""
RUN = {
    "trainer.max_steps": 12,
    "trainer.save_steps": 4,
    "trainer.eval_steps": 6,
    "trainer.logging_steps": 1,
    "tokenizer.vocab_size": 300,
    "dataset.cache_dir": "cache",
}
TIMES = ("perf/", "time/", "memory/", "train/tokens_per_sec")


def history(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: row[name] for name in row if not name.startswith(TIMES)} for row in rows]


def test_killed_and_resumed_it_is_the_run_that_never_stopped(start_child, run_child, command):
    words = [
        f"document {number} speaks of " + f"{number % 7} things " * (number % 40) for number in range(300)
    ]
    Path("text.txt").write_text("\n\n".join(words), encoding="utf-8")
    command("init", "run.yaml", "--task", "causal", "--text", "text.txt", "--device", "cpu").passed()
    written = Path("run.yaml").read_text(encoding="utf-8")
    Path("run.yaml").write_text(re.sub(r"model:.*?\n\n", MODEL, written, count=1, flags=re.DOTALL))
    sizes = [part for name, value in RUN.items() for part in ("--set", f"{name}={value}")]
    command("preflight", "run.yaml", *sizes).passed()

    whole = run_child("train", "run.yaml", *sizes, "--set", "trainer.output_dir=whole").passed()
    last = "checkpoints/12"
    assert f"evaluate generation {Path('whole', last).resolve()}" in whole.out
    killed = start_child("train", "run.yaml", *sizes, "--set", "trainer.output_dir=run")
    deadline = time.monotonic() + 60
    while not any(Path("run").glob("checkpoints/[0-9]*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    run_child("train", "run.yaml", *sizes, "--set", "trainer.output_dir=run", "--resume", "auto").passed()
    assert [row["step"] for row in history(Path("run"))] == list(range(13))
    assert history(Path("run")) == history(Path("whole"))
    last += "/model.safetensors"
    assert Path("run", last).read_bytes() == Path("whole", last).read_bytes()

    rows = [row for row in history(Path("run")) if "nsa/reads_pred" in row]
    assert len(rows) == 12
    assert all(row["nsa/reads_pred"] == row["nsa/reads_act_total"] > 0 for row in rows)
    command("report", "run", "-o", "run.html").passed()
    assert "Gates: mean share of each branch" in Path("run.html").read_text(encoding="utf-8")

    Path("few.jsonl").write_text(json.dumps({"text": words[39]}), encoding="utf-8")
    scored = command("evaluate", "perplexity", "run", "few.jsonl", "-o", "scores.npy").passed()
    assert "perplexity" in scored.out
    Path("prompts.txt").write_text(words[39][:60], encoding="utf-8")
    written = command(
        *("evaluate", "generation", "run", "prompts.txt", "--max-tokens", "3", "-o", "written")
    ).passed()
    assert "3.0 tokens on average" in written.out
    state = command("status", "run")
    assert re.search(r"gates cmp \d+%, slc \d+%, swa \d+%", state.out), state.out
    command("export", "run", "--to", "hf", "--output", "out").passed()
    assert "A native sparse attention (NSA) model" in Path("out/hf/README.md").read_text(encoding="utf-8")
    report = json.loads(Path("out/hf/conversion.json").read_text(encoding="utf-8"))
    assert report["max_difference"]["weights"] == 0
    assert report["not_compared"] == ["last_hidden_state", "logits"]
