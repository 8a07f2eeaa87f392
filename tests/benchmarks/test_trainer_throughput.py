"""What a run's lines of metrics become: medians behind the warm-up, and the fastest backend's figures."""

from __future__ import annotations

import json

import made_up_run
import pytest
import trainer_throughput


def line(step: int, rate: float, wait_ms: float) -> dict[str, float | None]:
    return {
        "step": step,
        "train/loss": 9.0,
        "train/tokens_per_sec": rate,
        "perf/mfu": None,
        "time/step_ms": 100.0,
        "time/data_wait_ms": wait_ms,
        "perf/data_wait_share": wait_ms / 100,
    }


def test_the_first_half_does_not_count():
    lines = [line(10, 1, 90), line(20, 2, 80), line(30, 100, 1), line(40, 120, 3)]
    found = trainer_throughput.summary(lines)
    assert (found["train/tokens_per_sec"], found["perf/data_wait_share"]) == (110, 0.02)
    assert found["perf/mfu"] is None


def test_the_figures_are_the_fastest_backends(tmp_path):
    slow, fast = (trainer_throughput.summary([line(1, rate, rate / 10)]) for rate in (10, 20))
    results = {"torch": slow, "triton": fast, "fused": {"error": "planted"}}
    trainer_throughput.write_figures(tmp_path, results, 1024)
    share = json.loads((tmp_path / "data-wait-share.json").read_text())
    assert (share["value"], share["target"]) == (0.02, 0.01)
    assert json.loads((tmp_path / "trainer-throughput.json").read_text())["value"] == 20
    trainer_throughput.write_figures(tmp_path, {"fused": {"error": "planted"}}, 4096)
    assert json.loads((tmp_path / "data-wait-share-4096.json").read_text())["value"] is None


@pytest.mark.parametrize("row_length", [1024, 4096])
def test_documents_fill_what_they_are_asked_for(tmp_path, row_length):
    path = tmp_path / "documents.jsonl"
    made_up_run.write_documents(path, 50_000, row_length)
    lengths = [len(json.loads(text)["text"].split()) + 2 for text in path.read_text().splitlines()]
    assert 50_000 <= sum(lengths) < 50_000 + row_length
    assert max(lengths) <= row_length
    assert (set(lengths) == {4096}) == (row_length == 4096)
