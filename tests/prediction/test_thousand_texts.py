"""`predict` against the pipelines of transformers on 1,000 real texts of each of four tasks; killed, resumed.

Needs the folder that NEOBERT_TEST_DATA names: minutes on a slow machine, so the set of each night runs it.
"""

import csv
import gzip
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import transformers

from tests.prediction.test_predict import LABELS, SCORE, pipeline, predict

FOLDER = os.environ.get("NEOBERT_TEST_DATA")
pytestmark = [
    pytest.mark.skipif(FOLDER is None, reason="NEOBERT_TEST_DATA does not name a folder of real data"),
    pytest.mark.e2e,
]
ROOT = Path(FOLDER or ".")
NUM_TEXTS, CLOSE, LONGEST = 1000, 1e-6, 128
SIZES = {
    "vocab_size": 30_522, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 96, "max_position_embeddings": LONGEST, "initializer_range": 0.2,
}  # fmt: skip


def rows_of(path: str, *names: str) -> list[tuple[str, ...]]:
    file = ROOT / "glue" / path
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [
            tuple(row[name].strip() for name in names) for row, _ in zip(rows, range(NUM_TEXTS), strict=False)
        ]


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return [text for (text,) in rows_of("SST-2/train.tsv.gz", "sentence")]


@pytest.fixture
def saved(tmp_path):
    """Save a small BERT with random weights of some size and a real tokenizer."""

    def save(head, **more):
        torch.manual_seed(0)
        config = transformers.BertConfig(**SIZES, **more)
        folder = tmp_path / "model"
        getattr(transformers, f"BertFor{head}")(config).save_pretrained(folder)
        tokenizer = ROOT / "tokenizers" / "bert-base-uncased"
        transformers.BertTokenizerFast(str(tokenizer / "vocab.txt")).save_pretrained(folder)
        return folder

    return save


def largest(pairs) -> float:
    """Return the largest difference, and print it with the number of texts."""
    differences = [abs(one - other) for one, other in pairs]
    print(f"{len(differences):,} values, largest difference {max(differences):.2g}")
    return max(differences)


def test_classes(saved, sentences, tmp_path):
    folder = saved("SequenceClassification", **LABELS)
    found = predict(folder, [{"text": text} for text in sentences], tmp_path, dtype="fp32", every_class=True)
    wanted = pipeline("text-classification", folder)(
        sentences, top_k=None, truncation=True, max_length=LONGEST
    )
    assert [row["prediction"] for row in found] == [scores[0]["label"] for scores in wanted]
    pairs = (
        (row[f"probability_{each['label']}"], each["score"])
        for row, scores in zip(found, wanted, strict=True)
        for each in scores
    )
    assert largest(pairs) <= CLOSE


def test_scores_of_pairs(saved, tmp_path):
    folder = saved("SequenceClassification", **SCORE)
    texts = rows_of("STS-B/train.tsv", "sentence1", "sentence2")
    rows = [{"text": first, "other": second} for first, second in texts]
    found = predict(folder, rows, tmp_path, dtype="fp32", pair_column="other")
    inputs = [{"text": first, "text_pair": second} for first, second in texts]
    requested = {"truncation": True, "max_length": LONGEST, "function_to_apply": "none"}
    wanted = pipeline("text-classification", folder)(inputs, **requested)
    scale = max(1, *(abs(each["score"]) for each in wanted))
    pairs = ((row["prediction"], each["score"]) for row, each in zip(found, wanted, strict=True))
    assert largest(pairs) <= CLOSE * scale


def test_labels_of_words(saved, sentences, tmp_path):
    folder = saved("TokenClassification", **LABELS)
    found = predict(folder, [{"tokens": text.split()} for text in sentences], tmp_path, dtype="fp32")
    wanted = pipeline("token-classification", folder, ignore_labels=[])(sentences)
    pairs = []
    for text, row, tokens in zip(sentences, found, wanted, strict=True):
        first = {each["start"]: each for each in tokens}
        words = text.split()
        starts = [sum(len(word) + 1 for word in words[:number]) for number in range(len(words))]
        assert row["prediction"] == [first[start]["entity"] for start in starts]
        pairs += zip(row["probability"], [first[start]["score"] for start in starts], strict=True)
    assert largest(pairs) <= CLOSE


def test_masked_words(saved, sentences, tmp_path):
    folder, draw = saved("MaskedLM"), random.Random(0)
    texts = []
    for text in sentences:
        words = text.split()
        words[draw.randrange(len(words))] = "[MASK]"
        texts.append(" ".join(words))
    found = predict(folder, [{"text": text} for text in texts], tmp_path, dtype="fp32")
    wanted = pipeline("fill-mask", folder)(texts, top_k=1)
    assert [row["prediction"] for row in found] == [best["token_str"] for (best,) in wanted]
    pairs = ((row["probability"], best["score"]) for row, (best,) in zip(found, wanted, strict=True))
    assert largest(pairs) <= CLOSE


def test_a_killed_command_continues(saved, sentences, tmp_path):
    folder = saved("SequenceClassification", **LABELS)
    whole = predict(folder, [{"text": text} for text in sentences], tmp_path, "whole.jsonl", dtype="fp32")
    output = tmp_path / "out.jsonl"
    command = [sys.executable, "-P", "-m", "launcher", "predict", str(folder), str(tmp_path / "in.jsonl")]
    command += ["--output", str(output), "--texts-per-shard", "20", "--processes", "1"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 300
    while not (parts := [*tmp_path.glob("out.jsonl.parts/*.jsonl")]):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    os.killpg(process.pid, 9)
    process.communicate()
    assert parts
    assert not output.exists(), "killed too late: the job was done"
    subprocess.run(command, check=True, capture_output=True)
    assert [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()] == whole
