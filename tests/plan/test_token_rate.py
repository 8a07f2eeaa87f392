"""Bytes per token, and the passes that follow from them."""

import csv
import itertools
import re
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from neobert.config.schema import TokenizerConfig
from neobert.plan.token_rate import BYTES_PER_TOKEN, bytes_per_token

pytest.importorskip("torch")

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from launcher.cli.app import run
from neobert.data.store.prepare import prepare
from profiles.registry import resolve_run
from tests.launcher.model_folders import write_model

SENTENCES = [
    (" ".join(text.split()), len(label) % 2)
    for label, page in itertools.islice(topics.items(), 30)
    for text in re.split(r"(?<=[.:])\s", page)
    if 20 < len(text.strip()) < 200
]
TEXTS = [text for text, _ in SENTENCES]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece() -> Tokenizer:
    found = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    found.normalizer = normalizers.BertNormalizer()
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=1500, special_tokens=SPECIAL))
    found.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return found


def byte_level() -> Tokenizer:
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet))
    return found


@pytest.mark.parametrize("make", [wordpiece, byte_level])
def test_a_file_that_pads_and_truncates_counts_all_tokens(make, tmp_path):
    tokenizer = make()
    num_tokens = sum(len(each.ids) for each in tokenizer.encode_batch(TEXTS, add_special_tokens=False))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    rate = sum(len(text.encode()) for text in TEXTS) / num_tokens
    assert bytes_per_token(TEXTS, TokenizerConfig(path=str(tmp_path))) == pytest.approx(rate)


def test_without_a_vocabulary_or_words_the_rate_is_that_of_english(tmp_path):
    assert bytes_per_token(TEXTS, TokenizerConfig(path=str(tmp_path))) == BYTES_PER_TOKEN
    wordpiece().save(str(tmp_path / "tokenizer.json"))
    assert bytes_per_token([" "], TokenizerConfig(path=str(tmp_path))) == BYTES_PER_TOKEN


def test_rows_cover_texts_of_more_tokens_than_english(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_byte = Tokenizer(models.BPE(vocab={}, merges=[]))
    by_byte.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    by_byte.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=alphabet))
    by_byte.save(str(write_model(Path("model"), max_position_embeddings=2048) / "tokenizer.json"))
    rows = [(f"{number:>5} {'x ' * 100}", number % 2) for number in range(100)]
    with Path("data.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    assert run(["init", "--from", "model", "--task", "classification", "--text", "data.csv"]) == 0
    config = resolve_run(None, ["run.yaml"]).config
    assert config.dataset.max_seq_length == 256  # for 206 bytes, a token each


@pytest.mark.child
@pytest.mark.parametrize("has_dev", [False, True])
def test_a_run_file_states_the_passes_that_the_run_makes(has_dev, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wordpiece().save(str(write_model(Path("model")) / "tokenizer.json"))
    Path("data").mkdir()
    for name, rows in (("train", SENTENCES[:800]), ("dev", SENTENCES[800:900] * has_dev)):
        with Path("data", f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    if not has_dev:
        Path("data", "dev.csv").unlink()
    assert (
        run(["init", "--from", "model", "--task", "classification", "--text", "data", "--device", "cpu"]) == 0
    )
    stated = re.search(r"about (\S+) passes", Path("run.yaml").read_text(encoding="utf-8"))
    config = resolve_run(None, ["run.yaml"], ["dataset.cache_dir=cache", "dataset.num_workers=1"]).config
    assert prepare(config).report["epochs"] == pytest.approx(float(stated[1]), rel=0.1)
