"""Text that states words twice, and the benchmark of longer rows on it."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

import long_context
import pytest
import row_lengths
from hypothesis import settings
from stated_twice import LONG, SHORT, WORDS_OF_STATEMENT, Corpus, document, sentences_of, words_of, write_text
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer

from neobert.config.schema import TokenizerConfig
from neobert.data.tokenize.tokenizers import load_tokenizer
from neobert.evaluation.passkey.documents import FILLER, STATEMENT, Documents

STATED = re.compile(r"(The \w+ \w+ are) (\w+ \w+ \w+)\.")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    draw, folder = random.Random(0), tmp_path / "data"
    folder.mkdir()
    words = ["".join(draw.choices("abdegklmnorstu", k=draw.randint(3, 8))) for _ in range(400)]
    sentences = [" ".join(draw.choices(words, k=draw.randint(5, 20))).capitalize() for _ in range(600)]
    with gzip.open(folder / "novel.txt.gz", "wt", encoding="utf-8") as file:
        file.write(". ".join(sentences))
    return folder


def corpus_of(data: Path) -> Corpus:
    sentences = sentences_of(data)
    return Corpus(sentences, sorted({*re.findall(r"\b[a-z]{4,}\b", " ".join(sentences))}))


def test_statements_are_of_every_word_that_the_passkey_test_asks_for(tmp_path):
    words = [f"{first}{second}ark" for first in "bdlmps" for second in "aeiou"]
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    others = ("##ing", "old", "Rome", "1900")
    vocabulary = dict.fromkeys([*special, *f"{STATEMENT} {FILLER}".split(), *words, *others])
    model = WordPiece({word: at for at, word in enumerate(vocabulary)}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.add_special_tokens([*special])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = TokenizerConfig(path=str(tmp_path))
    requested = Documents(load_tokenizer(config, roles=("mask_token",)), is_causal=False)
    assert {tokenizer.id_to_token(each) for each in requested.words} == {*words} <= {*words_of(tmp_path)}


@pytest.mark.parametrize("kind", [SHORT, LONG])
def test_each_statement_is_made_twice_in_a_document_of_its_size(data, kind):
    corpus, draw = corpus_of(data), random.Random(0)
    texts = [document(draw, corpus, kind) for _ in range(60)]
    found = [Counter(STATED.findall(text)) for text in texts]
    assert {count for each in found for count in each.values()} == {2}
    assert 0.1 < sum(not each for each in found) / len(found) < 0.5  # natural text
    keys = {word for each in found for _, key in each for word in key.split()}
    assert keys <= set(corpus.words)
    assert all(kind[0] - 2 * WORDS_OF_STATEMENT <= len(text.split()) <= kind[1] + 30 for text in texts)


def test_the_text_depends_on_the_kind_and_the_number_alone(data, tmp_path):
    first, again, other = (tmp_path / name for name in ("a", "b", "c"))
    for file, kind in ((first, SHORT), (again, SHORT), (other, LONG)):
        write_text(corpus_of(data), file, kind, 5)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    assert len(first.read_text(encoding="utf-8").splitlines()) == 5


def test_a_work_folder_in_use_is_refused_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    (tmp_path / "parent").mkdir()
    monkeypatch.setattr(sys, "argv", ["long_context", "no-data", str(tmp_path), "--tiny"])
    with pytest.raises(SystemExit):
        long_context.main()
    assert f"WORK is not empty: {tmp_path}" in capsys.readouterr().err


@pytest.mark.skipif(
    settings.get_current_profile_name() != "thorough", reason="four commands: make test-thorough"
)
def test_a_tiny_model_is_continued_and_tested(data, tmp_path, monkeypatch):
    words = ["long_context", str(data), str(tmp_path / "work"), "--tiny", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    long_context.main()
    detail = json.loads((tmp_path / "long-context.json").read_text(encoding="utf-8"))["detail"]
    parent, continued = detail["parent"], detail["continued"]
    assert set(parent["accuracy"]) == set(continued["accuracy"]) == {"128", "1024"}
    before, after = (each["evaluations"] for each in (parent, continued))
    assert after[0]["eval/source_loss"] == pytest.approx(before[-1]["eval/loss"], rel=0.017)


def test_rows_of_any_length_are_predicted_to_need_the_same_memory():
    plans = [row_lengths.predicted(length, is_tiny=False) for length in sorted(row_lengths.LENGTHS)]
    assert len({each["memory_mib"] for each in plans}) == 1
    speeds = [each["tokens_per_second"] for each in plans]
    assert speeds == sorted(speeds, reverse=True)


@pytest.mark.skipif(
    settings.get_current_profile_name() != "thorough", reason="a child process: make test-thorough"
)
def test_tiny_rows_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(row_lengths, "STEPS", 1)
    monkeypatch.setattr(sys, "argv", ["row_lengths", "--tiny", "--lengths", "128", "--output", str(tmp_path)])
    row_lengths.main()
    rows = json.loads((tmp_path / "long-context-rows.json").read_text(encoding="utf-8"))["detail"]["rows"]
    assert rows["128"]["tokens_per_second"] > 0
