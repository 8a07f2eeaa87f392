"""What is found in prepared text: nothing where it is sound, and each thing that is wrong by itself."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neobert.config import from_dict, to_dict
from neobert.config.schema import RunConfig, TokenizerConfig
from neobert.data.batches.microbatch import Microbatch
from neobert.data.store import contents
from neobert.data.store.inspection import inspect
from neobert.data.store.prepare import prepare
from neobert.data.tokenize.trained import train_tokenizer

WORDS = [f"word{number}" for number in range(50)]


@pytest.fixture
def config(tmp_path: Any) -> RunConfig:
    """Three ranks over a few hundred short documents."""
    folder = tmp_path / "text"
    folder.mkdir()
    generator = np.random.default_rng(0)
    documents = [" ".join(generator.choice(WORDS, size)) for size in generator.integers(3, 40, 600)]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return from_dict(
        {
            "dataset": {
                "path": str(folder),
                "cache_dir": str(tmp_path / "cache"),
                "max_seq_length": 32,
                "eval_samples": 20,
                "num_workers": 0,
            },
            "tokenizer": {"vocab_size": 256},
            "trainer": {"per_device_train_batch_size": 2, "max_steps": 4},
            "distributed": {"nproc_per_node": 3},
        }
    )


def found_in(config: RunConfig) -> dict[str, Any]:
    answer = inspect(config)
    assert answer["refusal"]["code"] == "", answer["refusal"]
    return dict(answer["prepared"])


def with_(config: RunConfig, **sections: dict[str, Any]) -> RunConfig:
    content = to_dict(config)
    for section, values in sections.items():
        content[section] |= values
    return from_dict(content)


@pytest.mark.parametrize("is_packed", [True, False])
def test_sound_text(config, is_packed):
    found = found_in(with_(config, datacollator={"pack_sequences": is_packed}))
    assert (found["altered_files"], found["repeated_samples"], found["missing_samples"]) == ([], 0, 0)
    assert (found["empty_ranks"], found["special_targets"], found["padding_targets"]) == ([], 0, 0)
    assert found["wrong_labels"] == 0
    assert found["sampled_microbatches"] == 63
    assert found["tokenizer_digest"] == found["data_tokenizer_digest"]
    assert 0 < found["max_token_id"] < found["vocab_size"] == 256
    assert found["masked_share"] == pytest.approx(0.2, abs=0.05)
    assert found["num_maskable"] > 1000
    assert found["epochs"] > 0
    assert sum(count for _, count in found["histogram"]) == 580


def test_the_tokenizer_of_the_weights_is_compared(config, tmp_path):
    assert "weights_tokens" not in found_in(config), "random weights"
    weights = tmp_path / "weights"
    weights.mkdir()
    for place in (weights, weights / "model.safetensors"):
        assert "weights_tokens" not in found_in(with_(config, model={"pretrained_checkpoint": str(place)}))
    own = with_(config, model={"pretrained_checkpoint": str(weights)})
    file = weights / "tokenizer.json"
    file.write_text((prepare(config).folder / "tokenizer" / "tokenizer.json").read_text())
    found = found_in(own)
    assert (found["weights_tokens"] > 50, found["renumbered_tokens"]) == (True, 0)
    text = file.read_text().replace('"word1"', '"x"').replace('"word2"', '"word1"')
    file.write_text(text.replace('"x"', '"word2"'))
    assert found_in(own) == found | {"renumbered_tokens": 2}
    file.write_text("{")
    assert "weights_tokens" not in found_in(own)


def test_a_stream(config):
    found = found_in(with_(config, dataset={"streaming": True, "shuffle_buffer_size": 100}))
    assert found["is_stream"]
    assert (found["num_tokens"], found["epochs"], found["fill"]) == (None, None, None)
    assert (found["repeated_samples"], found["missing_samples"], found["empty_ranks"]) == (0, 0, [])
    assert found["sampled_microbatches"] > 3


def test_a_text_of_less_than_a_round_is_not_compared(config):
    few = {"per_device_train_batch_size": 64, "max_steps": 4}
    found = found_in(with_(config, trainer=few, distributed={"nproc_per_node": 10}))
    assert found["sampled_microbatches"] == 0
    assert found["missing_samples"] == 0


def test_one_flipped_bit_is_seen(config):
    folder = prepare(config).folder
    content = bytearray((folder / "train.tokens").read_bytes())
    content[100] ^= 1
    (folder / "train.tokens").write_bytes(content)
    found = found_in(config)
    assert found["altered_files"] == ["train.tokens"]
    (folder / "train.tokens").write_bytes(bytes(content[:100]) + bytes([content[100] ^ 1]) + content[101:])
    assert found_in(config)["altered_files"] == []


def test_an_id_beyond_the_vocabulary_is_seen(config):
    folder = prepare(config).folder
    tokens = np.memmap(folder / "train.tokens", "<u2", mode="r+")
    tokens[-1] = 256
    tokens.flush()
    found = found_in(config)
    assert (found["max_token_id"], found["vocab_size"], found["sampled_microbatches"]) == (256, 256, 0)


def test_a_file_that_lost_its_end_is_refused(config):
    folder = prepare(config).folder
    with (folder / "train.tokens").open("r+b") as file:
        file.truncate(64)
    answer = inspect(config)
    assert answer["prepared"] is None
    assert answer["refusal"]["code"] == "DAT001"
    assert "has 64 bytes" in answer["refusal"]["message"]
    assert answer["refusal"]["hint"]


class Tampered(contents.TrainStream):
    """A stream of which one thing is wrong."""

    change: Any = None

    def __next__(self) -> Microbatch:
        return type(self).change(super().__next__())


def tamper(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    monkeypatch.setattr(Tampered, "change", staticmethod(change))
    monkeypatch.setattr(contents, "TrainStream", Tampered)


def test_ranks_that_read_the_same_are_seen(config, monkeypatch):
    class Overlapping(contents.TrainStream):
        def __init__(self, prepared: Any, config: Any, tokenizer: Any, rank: int, world_size: int) -> None:
            super().__init__(prepared, config, tokenizer, min(rank, 1), world_size)

    monkeypatch.setattr(contents, "TrainStream", Overlapping)
    found = found_in(config)
    assert found["repeated_samples"] > 0
    assert found["missing_samples"] > 0


def test_a_rank_without_text_is_seen(config, monkeypatch):
    class Starving(contents.TrainStream):
        def __init__(self, prepared: Any, config: Any, tokenizer: Any, rank: int, world_size: int) -> None:
            super().__init__(prepared, config, tokenizer, rank, world_size)
            self.is_starved = rank == 2

        def __next__(self) -> Microbatch:
            batch = super().__next__()
            return replace(batch, num_tokens=0) if self.is_starved else batch

    monkeypatch.setattr(contents, "TrainStream", Starving)
    assert found_in(config)["empty_ranks"] == [2]


def test_targets_in_padding_and_on_markers_are_seen(config, monkeypatch):
    def all_targets(batch: Microbatch) -> Microbatch:
        batch.labels.copy_(batch.input_ids)
        return batch

    tamper(monkeypatch, all_targets)
    found = found_in(config)
    assert found["padding_targets"] > 0
    assert found["special_targets"] > found["padding_targets"]
    assert found["masked_share"] > 0.9


def test_a_label_that_is_not_the_text_is_seen(config, monkeypatch):
    def shift(batch: Microbatch) -> Microbatch:
        batch.labels[batch.labels > 10] -= 1
        return batch

    tamper(monkeypatch, shift)
    assert found_in(config)["wrong_labels"] > 0


@pytest.mark.child
def test_text_is_prepared_before_torch_is_imported(config, tmp_path):
    """A first launch waits for its text. Only AutoTokenizer, for a tokenizer_config.json, needs torch."""
    file, request = tmp_path / "tokenizer.json", tmp_path / "resolved.json"
    train_tokenizer(WORDS, TokenizerConfig(vocab_size=128)).backend_tokenizer.save(str(file))
    content = to_dict(with_(config, tokenizer={"path": str(file), "vocab_size": None}))
    request.write_text(json.dumps(content), encoding="utf-8")
    program = (
        "import json, sys\n"
        "from neobert.config import from_dict\n"
        "from neobert.data.store.inspection import prepare\n"
        "found = prepare(from_dict(json.load(open(sys.argv[1]))))\n"
        "assert found.train.num_tokens, found\n"
        "sys.exit(bool({'torch', 'datasets', 'pyarrow'} & set(sys.modules)))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(request)], check=True)
