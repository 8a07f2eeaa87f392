"""Documents that are made up: the same every time, of lengths that the config admits."""

import numpy as np
import pytest

from neobert.bench.documents import draw_lengths, synthesize_data
from neobert.config import from_dict
from neobert.data.batches.streams import TrainStream
from neobert.errors import ProjectError


def config_of(max_length=64, rows=4, **sections):
    return from_dict(
        {
            "model": {"max_position_embeddings": max_length},
            "tokenizer": {"vocab_size": 512},
            "dataset": {"max_seq_length": max_length, "num_workers": 0},
            "trainer": {"per_device_train_batch_size": rows},
            **sections,
        }
    )


def test_they_are_the_same_every_time(tmp_path):
    first, second = (synthesize_data(config_of(), tmp_path) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert np.array_equal(first.train.tokens, second.train.tokens)
    assert synthesize_data(config_of(max_length=32), tmp_path).fingerprint != first.fingerprint


def test_lengths_are_those_of_web_text():
    lengths = draw_lengths(config_of(max_length=1024, rows=32), 3, np.random.default_rng(0))
    assert lengths.mean() == pytest.approx(213, rel=0.01)  # 217 before they are cut
    assert 3 <= lengths.min() < 10
    assert lengths.max() == 1024


@pytest.mark.parametrize("pack", [True, False])
def test_they_make_microbatches(tmp_path, pack):
    config = config_of(datacollator={"pack_sequences": pack})
    prepared = synthesize_data(config, tmp_path)
    with TrainStream(prepared, config, prepared.tokenizer) as stream:
        batch = next(stream)
    assert 0 < batch.num_targets < batch.num_tokens <= 256
    assert int(batch.input_ids.max()) < prepared.tokenizer.vocab_size == 512


def test_a_vocabulary_that_is_no_round_number_is_never_exceeded(tmp_path):
    config = config_of(model={"vocab_size": 700, "max_position_embeddings": 64})
    assert synthesize_data(config, tmp_path).tokenizer.vocab_size == 640


def test_a_vocabulary_that_no_tokenizer_is_as_small_as_is_refused(tmp_path):
    with pytest.raises(ProjectError, match="to at least 128") as caught:
        synthesize_data(config_of(model={"vocab_size": 100, "max_position_embeddings": 64}), tmp_path)
    assert caught.value.code == "MOD002"


@pytest.mark.parametrize("problem", ["classes", "regression"])
def test_a_classification_run_gets_labels(tmp_path, problem):
    config = config_of(task="classification", classification={"problem": problem, "num_labels": 3})
    prepared = synthesize_data(config, tmp_path)
    with TrainStream(prepared, config, prepared.tokenizer) as stream:
        batch = next(stream)
    labels = batch.labels[: batch.num_segments]  # the rest fills the static shape
    assert labels.is_floating_point() == (problem == "regression")
    assert len(labels.unique()) > 1
    assert 0 <= labels.min() <= labels.max() <= 2


def test_a_run_over_words_gets_a_label_for_each_token(tmp_path):
    names = {"label_names": ["O", "B-PER", "I-PER"]}
    config = config_of(task="token_classification", token_classification=names)
    prepared = synthesize_data(config, tmp_path)
    with TrainStream(prepared, config, prepared.tokenizer) as stream:
        batch = next(stream)
    assert batch.labels.shape == batch.input_ids.shape
    assert batch.labels[: batch.num_tokens].unique().tolist() == [0, 1, 2]
