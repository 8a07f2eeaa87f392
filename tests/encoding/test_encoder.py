"""The encoder against the model's own forward, one padded text at a time."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from neobert.encoding import Encoder, encoder, packed_rows
from neobert.errors import ProjectError
from tests.encoding.conftest import WORDS
from tests.refusals import refusal_of

TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join), min_size=1, max_size=24)
SOME = ["the model", "a b c the text reads", "", "text " * 40, "b"]


def differences(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max())


@given(texts=TEXTS, tokens_per_run=st.integers(1, 200), pooling=st.sampled_from(["avg", "cls", "max"]))
def test_packed_equals_one_padded_text_at_a_time(model_folder, one_by_one, texts, tokens_per_run, pooling):
    found = Encoder.load(model_folder, pooling=pooling, tokens_per_run=tokens_per_run).encode(texts)
    assert found.dtype == np.float32
    assert differences(found, one_by_one(model_folder, texts, pooling)) < 1e-5


def test_chunks_keep_the_order(model_folder, one_by_one, monkeypatch):
    monkeypatch.setattr(encoder, "TEXTS_PER_CHUNK", 3)
    texts = [f"{'the ' * (number % 7)} model" for number in range(20)]
    assert differences(Encoder.load(model_folder).encode(texts), one_by_one(model_folder, texts)) < 1e-5


def test_filler_changes_nothing(model_folder, one_by_one):
    loaded = Encoder.load(model_folder)
    loaded.model.length_multiple = 64
    assert differences(loaded.encode(SOME), one_by_one(model_folder, SOME)) < 1e-5


@pytest.mark.parametrize("merged", ["bounds", "positions"])
def test_a_run_with_a_wrong_bound_is_caught(model_folder, one_by_one, monkeypatch, merged):
    """Negative control: texts that see each other, or positions that go on, change embeddings."""
    right = packed_rows.pack

    def wrong(*arguments):
        run = right(*arguments)
        bounds = run.cu_seqlens.clone()
        if merged == "bounds":
            bounds[1:-1] -= 1
            return packed_rows.PackedRow(run.input_ids, run.position_ids, bounds, run.lengths)
        return packed_rows.PackedRow(run.input_ids, run.position_ids * 2, bounds, run.lengths)

    monkeypatch.setattr(encoder, "pack", wrong)
    assert differences(Encoder.load(model_folder).encode(SOME), one_by_one(model_folder, SOME)) > 1e-3


def test_truncation_is_counted(model_folder, one_by_one):
    loaded = Encoder.load(model_folder, max_length=8)
    found = loaded.encode(SOME)
    assert differences(found, one_by_one(model_folder, SOME, max_length=8)) < 1e-5
    assert (loaded.counts.texts, loaded.counts.truncated, loaded.counts.tokens_lost) == (5, 1, 34)
    assert loaded.counts.empty == 1


def test_embeddings_are_normalized_on_request(model_folder):
    plain, scaled = (Encoder.load(model_folder, normalize=each).encode(SOME) for each in (False, True))
    assert np.allclose(scaled, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)


def test_no_texts_are_no_embeddings(model_folder):
    assert Encoder.load(model_folder).encode([]).shape == (0, 32)


def rewritten(folder: Path, **changes: object) -> Path:
    config = json.loads((folder / "config.json").read_text())
    config = {name: value for name, value in (config | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_without_a_pooling_is_refused(model_folder):
    refusal_of(Encoder.load, "model-folder", "declares no pooling", rewritten(model_folder, pooling=None))


def with_modules(folder: Path, *names: str, **pooling: object) -> Path:
    modules = [{"idx": number, "name": str(number), "path": f"{number}_{name}", "type": f"x.{name}"}
               for number, name in enumerate(names)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    return folder


@pytest.mark.parametrize(
    "pooling", [{"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, {"pooling_mode": "mean"}]
)
def test_modules_of_sentence_transformers_are_read(model_folder, pooling):
    folder = with_modules(
        rewritten(model_folder, pooling=None), "Transformer", "Pooling", "Normalize", **pooling
    )
    loaded = Encoder.load(folder)
    assert (loaded.pooling, loaded.normalizes, loaded.tokenizer.max_length) == ("avg", True, 16)


def test_the_limit_may_be_that_of_the_tokenizer_of_sentence_transformers(model_folder):
    folder = rewritten(model_folder, pooling="avg")
    positions = Encoder.load(folder).tokenizer.max_length
    with_modules(folder, "Transformer", "Pooling", pooling_mode="mean")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 12}')
    assert Encoder.load(folder).tokenizer.max_length == 16, "sentence_bert_config.json comes first"
    (folder / "sentence_bert_config.json").write_text('{"transformer_task": "feature-extraction"}')
    assert Encoder.load(folder).tokenizer.max_length == 12
    (folder / "modules.json").unlink()
    assert Encoder.load(folder).tokenizer.max_length == positions


@pytest.mark.parametrize(
    ("names", "pooling", "message"),
    [
        (("Transformer", "Pooling", "Dense"), {"pooling_mode": "mean"}, "a module Dense"),
        (("Transformer", "Pooling"), {"pooling_mode": "cls"}, "declares pooling avg, but the Pooling"),
        (("Transformer", "Pooling"), {"pooling_mode_weightedmean_tokens": True}, "pooling weightedmean"),
        (("Transformer", "Pooling"), {}, "pooling none"),
    ],
)
def test_declarations_that_would_change_an_embedding_are_refused(model_folder, names, pooling, message):
    refusal_of(Encoder.load, "model-folder", message, with_modules(model_folder, *names, **pooling))


def test_lowercasing_that_the_tokenizer_does_not_do_is_refused(model_folder):
    file, settings = model_folder / "tokenizer.json", model_folder / "sentence_bert_config.json"
    settings.write_text('{"do_lower_case": true}')
    content = json.loads(file.read_text())
    for normalizer in ({"type": "Lowercase"}, {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}):
        file.write_text(json.dumps({**content, "normalizer": normalizer}))
        Encoder.load(model_folder, pooling="avg")
    file.write_text(json.dumps({**content, "normalizer": {"type": "NFC"}}))
    refusal_of(Encoder.load, "model-folder", "sets do_lower_case", model_folder, pooling="avg")
    settings.write_text('{"do_lower_case": false}')
    Encoder.load(model_folder, pooling="avg")


def test_an_encoder_of_transformers_is_padded(tmp_path, tokenizer_dir, one_by_one):
    from transformers import AutoTokenizer, ModernBertConfig, ModernBertForMaskedLM

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    config = ModernBertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=32, pad_token_id=tokenizer.pad_token_id, reference_compile=False,
    )  # fmt: skip
    folder = tmp_path / "modernbert"
    ModernBertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    found = Encoder.load(folder, pooling="avg").encode(SOME)
    assert differences(found, one_by_one(folder, SOME)) < 1e-5
    assert torch.get_num_threads() == 1


def test_a_tokenizer_with_more_tokens_than_rows_is_refused(model_folder):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    added = 65 - len(tokenizer)
    tokenizer.add_tokens([f"word{number}" for number in range(added - 1)])
    tokenizer.save_pretrained(model_folder)
    assert Encoder.load(model_folder).encode(["the model"]).shape == (1, 32)
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(model_folder)
    with pytest.raises(
        ProjectError, match="the tokenizer has 65 tokens, but the model has 64 embedding rows"
    ):
        Encoder.load(model_folder)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "texts is a string, expected a list of strings"),
        (["a", None], r"texts\[1\] is NoneType, not a string"),
        ([["a", "b"]], r"texts\[0\] is list, not a string"),
    ],
)
def test_only_a_sequence_of_strings_is_encoded(model_folder, texts, message):
    """The characters of a string would be encoded, and a pair as one text."""
    with pytest.raises(TypeError, match=message):
        Encoder.load(model_folder).encode(texts)
