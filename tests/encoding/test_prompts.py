"""Prompts of model folders, as sentence-transformers applies them."""

import json

import numpy as np
import pytest

from neobert.encoding import Encoder
from neobert.encoding.prompts import Prompts, read_prompts
from neobert.errors import ProjectError

TEXTS = ["model reads", "b", "a b c text the text", ""]


def declare(folder, pooling, *, includes_prompt, default=None):
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    settings = {"pooling_mode": pooling, "embedding_dimension": 32, "include_prompt": includes_prompt}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    prompts = {"query": "the a ", "document": "c text "}
    content = {"prompts": prompts, "default_prompt_name": default}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(content))


@pytest.mark.parametrize(("pooling", "includes_prompt"), [("mean", True), ("mean", False), ("max", False)])
def test_embeddings_with_prompts_are_those_of_sentence_transformers(model_folder, pooling, includes_prompt):
    from sentence_transformers import SentenceTransformer

    config = json.loads((model_folder / "config.json").read_text())
    kept = {"mean": "avg", "max": "max"}[pooling]
    (model_folder / "config.json").write_text(json.dumps(config | {"pooling": kept}))
    declare(model_folder, pooling, includes_prompt=includes_prompt, default="document")
    encoder = Encoder.load(model_folder, tokens_per_run=16)
    peer = SentenceTransformer(str(model_folder), trust_remote_code=True, device="cpu")
    for prompt, wanted in (
        (None, peer.encode(TEXTS)),
        (encoder.prompts.query_prompt, peer.encode_query(TEXTS)),
        (encoder.prompts.document_prompt, peer.encode_document(TEXTS)),
        ("", peer.encode(TEXTS, prompt="")),
    ):
        np.testing.assert_allclose(encoder.encode(TEXTS, prompt=prompt), wanted, atol=1e-5)
    assert np.abs(encoder.encode(TEXTS) - encoder.encode(TEXTS, prompt="")).max() > 0.01


def test_a_prompt_without_room_for_a_text_is_refused(model_folder):
    encoder = Encoder.load(model_folder, max_length=8)
    with pytest.raises(ProjectError, match=r"the prompt leaves no room for a text \(limit 8 tokens\)"):
        encoder.encode(["text"], prompt="the model reads text a b c ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"prompts": ["a"]}, "prompts is not an object of texts"),
        ({"prompts": {"query": 1}}, "prompts is not an object of texts"),
        (
            {"prompts": {}, "default_prompt_name": "query"},
            "default_prompt_name query is not among the prompts",
        ),
    ],
)
def test_an_unusable_declaration_is_refused(tmp_path, content, message):
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(content))
    with pytest.raises(ProjectError, match=message):
        read_prompts(tmp_path)


def test_a_folder_without_prompts_has_none(tmp_path):
    prompts = read_prompts(tmp_path)
    assert (prompts.text_prompt, prompts.query_prompt, prompts.document_prompt) == ("", "", "")
    assert Prompts({"corpus": "c ", "passage": "p "}).document_prompt == "p "
