"""Real text and a real tokenizer, from the folder that NEOBERT_TEST_DATA names."""

import os
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from neobert.config.schema import DatasetConfig, RunConfig, TokenizerConfig, TrainerConfig
from neobert.data.batches.streams import EvalStream, TrainStream
from neobert.data.sources.corpus import open_corpus
from neobert.data.store.prepare import prepare
from neobert.data.store.prepared_data import PreparedData
from neobert.data.tokenize.tokenizers import load_tokenizer

FOLDER = os.environ.get("NEOBERT_TEST_DATA")
pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="NEOBERT_TEST_DATA does not name a folder of real data"
)
ROOT = Path(FOLDER or ".")


def configured(cache: Path, path: str, **dataset: object) -> RunConfig:
    return RunConfig(
        tokenizer=TokenizerConfig(path=str(ROOT / "tokenizers" / "bert-base-uncased")),
        dataset=DatasetConfig(
            path=str(ROOT / "pretrain" / path),
            max_seq_length=256,
            cache_dir=str(cache),
            num_workers=1,
            **dataset,
        ),
        trainer=TrainerConfig(per_device_train_batch_size=8, per_device_eval_batch_size=8),
    )


@pytest.fixture(scope="module")
def speeches(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, PreparedData]:
    config = configured(tmp_path_factory.mktemp("cache"), "sotu.jsonl.gz", validation_split=0.1)
    return config, prepare(config)


def test_the_published_tokenizer_loads_from_its_bare_folder():
    found = load_tokenizer(TokenizerConfig(path=str(ROOT / "tokenizers" / "bert-base-uncased")))
    assert (found.num_tokens, found.vocab_size, found.pad_id, found.mask_id) == (30_522, 30_592, 0, 103)
    assert found.tokenizer("Hello, world!").input_ids == [101, 7592, 1010, 2088, 999, 102]


def test_speeches_are_prepared_as_the_tokenizer_reads_them(speeches):
    config, data = speeches
    text = next(iter(open_corpus(config.dataset)))
    expected = data.tokenizer.tokenizer(text, add_special_tokens=False).input_ids[: 256 - 2]
    first = data.train.tokens[: data.train.offsets[1]].tolist()
    assert first == [101, *expected, 102]
    assert data.report["microbatch"]["fill"] > 0.98


def test_microbatches_of_speeches_are_masked_as_asked(speeches):
    config, data = speeches
    with TrainStream(data, config, data.tokenizer) as stream:
        batches = list(islice(stream, 60))
    num_tokens = sum(batch.num_tokens - 2 * batch.num_segments for batch in batches)
    assert sum(batch.num_targets for batch in batches) / num_tokens == pytest.approx(0.2, abs=0.01)
    labels = np.concatenate([batch.labels.numpy() for batch in batches])
    assert not np.isin(labels, [0, 100, 101, 102, 103]).any()
    assert sum(batch.num_tokens for batch in EvalStream(data, config, data.tokenizer)) == data.eval.num_tokens


def test_hard_wrapped_novels_and_a_byte_order_mark(tmp_path):
    """A novel without blank lines is one document, cut to the context; one with them is many."""
    one = prepare(configured(tmp_path, "english_novels/Cbronte_Jane_1847.txt.gz"))
    many = prepare(configured(tmp_path, "english_novels/Trollope_Warden_1855.txt.gz"))
    assert one.report["train"]["documents"] == one.report["train"]["split"] == 1
    assert many.report["train"]["documents"] > 1000
    for data in (one, many):
        assert "\ufeff" not in data.tokenizer.tokenizer.decode(data.train.tokens[:50].tolist())
        assert data.report["train"]["tokens_lost"] == 0


def test_a_folder_is_sorted_into_splits_by_its_names(tmp_path):
    config = configured(tmp_path, "wikitext-2")
    corpus = open_corpus(replace(config.dataset, train_split="test"))
    assert "test" in corpus.label
    assert "validation" in corpus.evaluation.label
