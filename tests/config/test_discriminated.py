"""Sections of several types: `type` chooses the keys, and errors name the type that has a key."""

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config import ConfigError, Document
from neobert.config.hydrate import json_schema
from neobert.config.keys import describe_field
from neobert.config.overrides import parse_overrides
from neobert.config.resolution import resolve
from neobert.config.schema.model import HfModelConfig, ModelConfig, NsaModelConfig
from profiles.registry import resolve_run

SHARED = {"hidden_size": 64, "vocab_size": 128}
OWN = {"neobert": {"rope_theta": 5e4}, "hf": {"architecture": "bert"}}


def model_of(*layers: dict[str, object], overrides: tuple[str, ...] = ()) -> ModelConfig | HfModelConfig:
    documents = [Document.from_mapping({"model": layer}) for layer in layers]
    return resolve(documents, parse_overrides(overrides)).config.model


def test_a_section_without_a_type_is_of_the_first_one():
    assert model_of({}) == ModelConfig()
    assert model_of({"rope_theta": 5e4}) == ModelConfig(rope_theta=5e4)
    assert model_of({"type": "hf"}) == HfModelConfig()


@pytest.mark.parametrize("above", OWN)
@pytest.mark.parametrize("below", OWN)
def test_a_layer_of_another_type_removes_the_keys_that_only_the_type_below_has(below, above):
    lower = {"type": below, **SHARED, **OWN[below]}
    kept = SHARED | (OWN[below] if below == above else {})
    upper = {"type": above, "vocab_size": 256}
    assert model_of(lower, upper) == model_of(kept | upper)


def test_arguments_may_choose_the_type_after_they_set_its_keys():
    found = model_of({"rope": False} | SHARED, overrides=("model.attention_dropout=0.1", "model.type=hf"))
    assert found == HfModelConfig(attention_dropout=0.1, **SHARED)


@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        (
            {"architecture": "bert"},
            (
                "model.architecture",
                "model.architecture is a key of type hf, and model.type is neobert by default",
                "write model.type: hf, or remove model.architecture",
            ),
        ),
        (
            {"type": "hf", "rope": True},
            (
                "model.rope",
                "model.rope is a key of type neobert, and model.type is hf",
                "write model.type: neobert, or remove model.rope",
            ),
        ),
        (
            {"type": "nsa", "num_attention_heads": 16},
            (
                "model.num_attention_heads",
                "model.num_attention_heads is a key of type neobert or hf, and model.type is nsa",
                "write model.num_heads, or model.type: neobert",
            ),
        ),
        (
            {"num_heads": 4},
            (
                "model.num_heads",
                "model.num_heads is a key of type nsa, and model.type is neobert by default",
                "write model.num_attention_heads, or model.type: nsa",
            ),
        ),
        (
            {"type": "hf", "num_kv_heads": 2},
            (
                "model.num_kv_heads",
                "model.num_kv_heads is a key of type nsa, and model.type is hf",
                "write model.num_key_value_heads, for a decoder, or model.type: nsa",
            ),
        ),
        (
            {"type": "neobrt", "rope": True},
            (
                "model.type",
                'model.type expects one of neobert, hf, nsa, got the text "neobrt"',
                "did you mean neobert?",
            ),
        ),
        (
            {"type": "hf", "architectures": "bert"},
            ("model.architectures", "model.architectures is not a key", "did you mean model.architecture?"),
        ),
    ],
)
def test_an_error_names_the_type_and_what_it_takes(values, refusal):
    with pytest.raises(ConfigError) as caught:
        model_of(values)
    assert [(issue.path, issue.message, issue.hint) for issue in caught.value.issues] == [refusal]


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["type", "rope"]), inner),
    )
)
def test_no_value_of_a_section_is_a_crash(value):
    try:
        found = resolve([Document.from_mapping({"model": value})], []).config.model
    except ConfigError:
        return
    assert isinstance(found, ModelConfig | HfModelConfig | NsaModelConfig)


def test_the_keys_of_all_types_are_known_and_say_whose_they_are():
    kind, width, rope = (describe_field(("model", name)) for name in ("type", "hidden_size", "rope"))
    assert kind is not None
    assert width is not None
    assert rope is not None
    types = ("neobert", "hf", "nsa")
    assert (kind.type, kind.default, kind.choices) == (f"one of {', '.join(types)}", "neobert", types)
    assert (width.tags, rope.tags) == ((), ("neobert",))


def test_the_json_schema_takes_either_type_and_not_their_mixture():
    validator = jsonschema.Draft202012Validator(json_schema())
    for values, is_valid in (
        (OWN["neobert"], True),
        ({"type": "hf"} | OWN["hf"], True),
        ({"type": "hf"} | OWN["neobert"], False),
        ({"type": "t5"}, False),
    ):
        assert validator.is_valid({"model": values}) is is_valid


def test_a_profile_of_another_model_leaves_no_sizes():
    """The sizes of a NeoBERT would change the shape of a transformers model silently."""
    overrides = ("model.type=hf", "model.architecture=bert", "model.num_hidden_layers=2")
    model = resolve_run("cpu", overrides=overrides).config.model
    assert (model.hidden_size, model.num_hidden_layers) == (None, 2)
