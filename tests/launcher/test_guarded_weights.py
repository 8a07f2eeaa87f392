"""Checks of weights from elsewhere: special tokens, positions and head, and what each hint leads to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from neobert.runfiles.weights_header import tensor_shapes
from tests.launcher.model_folders import SIZES, write_header, write_model

pytestmark = pytest.mark.child

CODES = ("DAT029", "MOD007", "TSK011")
MASK = 4


@pytest.fixture
def findings(command: Callable[..., Any]) -> Callable[..., dict[str, str]]:
    """Write a run from the folder `model` and return the hints of its findings about the weights."""

    def judged(device: str = "cpu", **sections: Any) -> dict[str, str]:
        model = {"type": "hf", "pretrained_checkpoint": "model"} | sections.pop("model", {})
        run = {"profile": device, "model": model, "dataset": {"name": "builtin:python-docs"}}
        for name, values in sections.items():
            run[name] = {**run.get(name, {}), **values} if isinstance(values, dict) else values
        Path("run.yaml").write_text(yaml.safe_dump(run), encoding="utf-8")
        answer = command("preflight", "run.yaml", "--level", "host", "--output-format", "json")
        found = answer.json["findings"]
        return {each["code"]: each["hint"] for each in found if each["code"] in CODES}

    return judged


def settings(**changes: Any) -> None:
    file = Path("model", "config.json")
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def test_special_tokens_of_another_tokenizer(findings):
    write_model(Path("model"), "modernbert", mask_token_id=103, cls_token_id=2, pad_token_id=10**6)
    assert findings()["DAT029"] == (
        "put the tokenizer of the weights into model, or correct mask_token_id in its config.json"
    )
    settings(mask_token_id=MASK)
    assert findings() == {}
    settings(bos_token_id=2, eos_token_id=3)  # the first and the last token of an encoder
    assert findings() == {}
    settings(bos_token_id=7)
    assert "bos_token_id" in findings()["DAT029"]


def test_an_ordinary_token_of_the_usual_spelling_has_no_role(findings):
    """As in Qwen2: `<s>` is a word of its vocabulary, and bos of config.json is <|endoftext|>."""
    write_model(Path("model"), "modernbert", bos_token_id=7)
    file = Path("model", "tokenizer.json")
    content = json.loads(file.read_text(encoding="utf-8"))
    words = content["model"]["vocab"]
    cls = next(token for token in words if token in ("[CLS]", "<s>"))
    assert "bos_token_id" in findings()["DAT029"]
    for each in content["added_tokens"]:
        each["special"] = each["content"] != cls
    file.write_text(json.dumps(content), encoding="utf-8")
    assert findings() == {}


def test_a_declared_token_is_not_the_usual_spelling(findings):
    write_model(Path("model"), "modernbert", mask_token_id=9)
    declared = {"mask_token": {"content": "word4"}}
    Path("model", "tokenizer_config.json").write_text(json.dumps(declared), encoding="utf-8")
    assert findings() == {}


def test_rows_longer_than_the_weights_were_trained_for(findings):
    write_model(Path("model"), "modernbert")
    more = {"max_position_embeddings": 256}
    hint = findings(model=more, dataset={"max_seq_length": 256})["MOD007"]
    assert hint == "set dataset.max_seq_length to 128"
    assert findings(model=more, dataset={"max_seq_length": 128}) == {}


def test_rows_longer_than_those_of_this_programs_own_weights(findings):
    write_model(Path("model"), "neobert")
    Path("model", "model.safetensors").touch()
    sizes = {name: SIZES[name] for name in SIZES if name not in ("vocab_size", "max_position_embeddings")}
    own = {"type": "neobert", **sizes, "embedding_multiplier": 1.0}
    assert "MOD007" in findings(model=own, dataset={"max_seq_length": 256})
    assert findings(model=own, dataset={"max_seq_length": 128}) == {}


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_a_head_for_other_classes(kind, findings):
    write_model(Path("model"), kind)
    fine_tuned = {
        "task": "classification",
        "dataset": {"long_documents": "truncate", "name": None, "path": "texts.csv"},
    }
    Path("texts.csv").write_text("text,label\na word,bad\n", encoding="utf-8")
    two = fine_tuned | {"classification": {"label_names": ["bad", "good"], "pooling": "cls"}}
    three = fine_tuned | {"classification": {"label_names": ["bad", "fair", "good"], "pooling": "cls"}}
    assert findings(**two) == {}, "a pretrained encoder has no head for texts"
    settings(architectures=["AnyForSequenceClassification"])
    assert findings(**two)["TSK011"].startswith("set classification.label_names to the labels in its config")
    shapes = dict(tensor_shapes(Path("model")))
    shapes |= {
        f"{part}.weight": (3, SIZES["hidden_size"]) for part in ("classifier", "bert.pooler.dense", "head")
    }
    write_header(Path("model", "model.safetensors"), shapes)
    assert "TSK011" in findings(**two)
    assert findings(**three) == {}
    assert findings(task="pretrain") == {}
