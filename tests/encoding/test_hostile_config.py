"""A config.json from outside: wrong values are one sentence, and no model of another size is built."""

import json
import time
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModel, BertConfig, BertForMaskedLM

from neobert.encoding import Encoder
from neobert.errors import EXIT_CHECK_FAILED, ProjectError
from neobert.export.folder import read_tokenizer_files, write_hf_folder
from neobert.export.saved_settings import refuse_wrong_settings
from neobert.export.source import Source, open_source
from neobert.model import NeoBERTConfig, NeoBERTLMHead


def open_export(folder: Path) -> Source:
    """Load a model as `export` does."""
    return open_source([folder], None)


@pytest.mark.parametrize("read", [Encoder.load, open_export], ids=["encode", "export"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": []}, ("model_type [] is not supported", "config.json has no supported model")),
        ({"num_attention_heads": 0}, ("num_attention_heads is 0, expected a positive", "ZeroDivisionError")),
        ({"vocab_size": None}, ("vocab_size is null, expected a positive integer",)),
        (
            {"num_hidden_layers": 10**8},
            ("num_hidden_layers is 100,000,000, but the shapes of the weights require 2",),
        ),
        ({"num_hidden_layers": -1}, ("num_hidden_layers is -1, expected a positive integer",)),
        ({"num_hidden_layers": 1}, ("num_hidden_layers is 1, but the shapes of the weights require 2",)),
        ({"intermediate_size": 2 * 10**9}, ("intermediate_size is 2,000,000,000, but the largest",)),
        ({"max_position_embeddings": 2e9}, ("max_position_embeddings is 2000000000.0, expected a",)),
        ({"max_position_embeddings": 2 * 10**9}, ("is 2000000000, expected a positive integer of at most",)),
        ({"hidden_act": []}, ("AttributeError: 'list' object has no attribute 'lower'",)),
        ({"rope": "false"}, ('rope is "false", expected true or false',)),
    ],
)
def test_a_wrong_value_is_one_sentence(model_folder, read, change, message):
    """They were tracebacks, a model of no layers, or a model that took all memory and never ended."""
    config = model_folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    started_s = time.monotonic()
    with pytest.raises(ProjectError) as refusal:
        read(model_folder)
    assert any(each in refusal.value.message for each in message)
    assert refusal.value.exit_code == EXIT_CHECK_FAILED
    assert time.monotonic() - started_s < 60


def test_more_learned_positions_than_the_weights_have_are_refused_before_a_model_is_built(
    model_folder, tmp_path
):
    """The embedding of two million positions was allocated first, and filled with random numbers."""
    settings = NeoBERTConfig.from_pretrained(model_folder, rope=False)
    folder = tmp_path / "learned"
    write_hf_folder(NeoBERTLMHead(settings), read_tokenizer_files(model_folder), folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 2 * 10**6}))
    with pytest.raises(
        ProjectError, match="max_position_embeddings is 2,000,000, but the shapes of the weights require 32"
    ):
        open_export(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"num_hidden_layers": 10**8},
            "num_hidden_layers is 100,000,000, but the shapes of the weights require 1",
        ),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, expected a positive integer"),
        (
            {"max_position_embeddings": 2**20},
            "max_position_embeddings is 1,048,576, but the shapes of the weights require 32",
        ),
        ({"hidden_act": "swiglu"}, "the weights cannot be loaded: KeyError: 'swiglu'"),
    ],
)
def test_a_wrong_value_of_a_transformers_model_is_one_sentence(tmp_path, tokenizer_dir, change, message):
    folder = tmp_path / "bert"
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, pooling="avg",
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    for file in tokenizer_dir.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    Encoder.load(folder)
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | change))
    with pytest.raises(ProjectError, match=message):
        Encoder.load(folder)


GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
DISTILBERT = {"model_type": "distilbert", "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        (GPT2, {"n_positions": 2 * 10**9}, "n_positions is 2000000000, expected a positive integer"),
        (GPT2, {"n_positions": 64}, "n_positions is 64, but the shapes of the weights require 32"),
        (GPT2, {"n_layer": 10**8}, "n_layer is 100,000,000, but the shapes of the weights require 2"),
        (GPT2, {"n_embd": 10**6}, "n_embd is 1,000,000, but the shapes of the weights require 16"),
        (DISTILBERT, {"n_layers": 10**8}, "n_layers is 100,000,000, but the shapes of the weights require 2"),
        (DISTILBERT, {"hidden_dim": 2 * 10**9}, "hidden_dim is 2,000,000,000, but the largest weight"),
    ],
)
def test_settings_have_the_names_of_their_architecture(tmp_path, settings, change, message):
    config = AutoConfig.for_model(**{"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 1} | settings)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    refuse_wrong_settings(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ProjectError, match=message):
        refuse_wrong_settings(tmp_path)
