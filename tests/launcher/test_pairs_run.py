"""Pairs from a table to a search: `init`, `train`, `encode --index` and `search`, in an empty folder."""

import json
from pathlib import Path

import pytest

from tests.launcher.test_spans_and_choices_run import SHORT, SMALL
from tests.pairs import pairs

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]


def test_pairs_become_a_run_and_an_index(run_child):
    rows = pairs(240, 1)
    Path("pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    Path("texts.txt").write_text("\n".join(row["positive"] for row in rows[:20]), encoding="utf-8")
    made = run_child(
        "init", "run.yaml", "--task", "contrastive", "--text", "pairs.jsonl", "--device", "cpu"
    ).passed()
    assert "hard negatives: 'negative', up to 1 per pair" in made.out
    assert "SentenceTransformer('runs/run/checkpoints/best'" in made.out
    prompt = "--contrastive.query_prompt=query: "  # the shell removes the quotes; the space is kept
    trained = run_child("train", "run.yaml", *SMALL, *SHORT, prompt).passed()
    assert "next: neobert-launch encode" in trained.out
    assert run_child("encode", "runs/run", "texts.txt", "--index", "index").code == 0
    run_child("search", "index", rows[0]["query"], "--output-format", "json").passed()

    # The next run takes prompt and pooling from the weights, and no other pooling.
    again = ("init", "again.yaml", "--task", "contrastive", "--text", "pairs.jsonl", "--device", "cpu")
    assert run_child(*again, "--from", "runs/run/checkpoints/latest").code == 0
    assert "query_prompt: 'query: '" in Path("again.yaml").read_text(encoding="utf-8").replace('"', "'")
    refused = run_child("preflight", "again.yaml", "--level", "host", "--contrastive.pooling=cls")
    assert refused.code == 1
    assert "contrastive.pooling is cls, but the checkpoint declares avg" in refused.out
