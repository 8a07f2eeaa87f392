"""Sections of several types: `type` chooses the keys, and errors name the type that has a key."""

# ruff: noqa: RUF009  (key() and section() build fields)

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from neobert.config import ConfigError, Document
from neobert.config.annotations import annotation_at, members_by_tag
from neobert.config.canonical import to_json, to_plain
from neobert.config.hydrate import json_schema
from neobert.config.keys import all_keys, describe_field
from neobert.config.layers import lay_over
from neobert.config.overrides import as_layer, parse_overrides
from neobert.config.resolution import build, sources_of
from neobert.schema_fields import STRICT, NonNegativeInt, PositiveInt, key, section
from profiles.registry import resolve_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    type: Literal["square"] = key("square", "Kind of shape.")
    colour: str = key("red", "Colour.")
    side: PositiveInt = key(1, "Length of a side.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    type: Literal["circle"] = key("circle", "Kind of shape.")
    colour: str = key("red", "Colour.")
    radius: NonNegativeInt = key(2, "Radius.")
    centre: tuple[int, int] | None = key(None, "Centre.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    title: str = key("", "Title.")
    shape: Square | Circle = section(Square, "The shape.", affects="data")
    frame: Square | Circle | None = key(None, "A shape around it.")
    others: tuple[Square | Circle, ...] = key((), "More shapes.")


COLOURS = st.sampled_from(["red", "blue"])
SQUARES = st.fixed_dictionaries(
    {}, optional={"type": st.just("square"), "colour": COLOURS, "side": st.integers(1, 9)}
)
CIRCLES = st.fixed_dictionaries(
    {"type": st.just("circle")},
    optional={
        "colour": COLOURS,
        "radius": st.integers(0, 9),
        "centre": st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)).map(list),
    },
)
SHAPES = SQUARES | CIRCLES
DRAWINGS = st.fixed_dictionaries(
    {}, optional={"shape": SHAPES, "frame": st.none() | SHAPES, "others": st.lists(SHAPES, max_size=3)}
)


def drawing(*layers: dict[str, Any], overrides: tuple[str, ...] = ()) -> Drawing:
    documents = [*map(Document.from_mapping, layers), *map(as_layer, parse_overrides(overrides))]
    root = documents[0].root
    for document in documents[1:]:
        root = lay_over(root, document.root, Drawing)
    return build(Drawing, root, sources_of(documents))


def refusals(*layers: dict[str, Any]) -> list[tuple[str, str, str]]:
    with pytest.raises(ConfigError) as caught:
        drawing(*layers)
    return [(issue.path, issue.message, issue.hint) for issue in caught.value.issues]


def test_a_section_without_a_type_is_of_the_first_one() -> None:
    assert drawing({}) == Drawing(shape=Square())
    assert drawing({"shape": {"side": 3}}).shape == Square(side=3)
    assert drawing({"shape": {"type": "circle"}}).shape == Circle()


@given(DRAWINGS)
def test_the_canonical_form_loads_to_an_equal_configuration(values: dict[str, Any]) -> None:
    built = drawing(values)
    assert drawing(json.loads(to_json(built))) == built
    assert to_plain(built)["shape"]["type"] == values.get("shape", {}).get("type", "square")


@given(DRAWINGS)
def test_each_member_is_read_as_it_is_alone(values: dict[str, Any]) -> None:
    built = drawing(values)
    for given_values, member in zip(values.get("others", []), built.others, strict=True):
        alone = TypeAdapter(type(member)).validate_json(json.dumps(given_values))
        assert alone == member


@given(SHAPES, SHAPES)
def test_a_layer_of_another_type_removes_the_keys_that_only_the_type_below_has(
    below: dict[str, Any], above: dict[str, Any]
) -> None:
    above = {"type": "square"} | above
    member = members_by_tag(annotation_at(("shape",), Drawing))[above["type"]]
    kept = {name: value for name, value in below.items() if name in all_keys(member)}
    assert drawing({"shape": below}, {"shape": above}).shape == drawing({"shape": kept | above}).shape


def test_arguments_may_choose_the_type_after_they_set_its_keys() -> None:
    built = drawing(
        {"shape": {"side": 3, "colour": "blue"}}, overrides=("shape.radius=7", "shape.type=circle")
    )
    assert built.shape == Circle(radius=7, colour="blue")


@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        (
            {"shape": {"radius": 1}},
            (
                "shape.radius",
                "shape.radius is a key of type circle, and shape.type is square by default",
                "write shape.type: circle, or remove shape.radius",
            ),
        ),
        (
            {"shape": {"type": "circle", "side": 1}},
            (
                "shape.side",
                "shape.side is a key of type square, and shape.type is circle",
                "write shape.type: square, or remove shape.side",
            ),
        ),
        (
            {"shape": {"type": "circel", "side": 1}},
            (
                "shape.type",
                'shape.type expects one of square, circle, got the text "circel"',
                "did you mean circle?",
            ),
        ),
        (
            {"shape": {"type": "circle", "radios": 1}},
            ("shape.radios", "shape.radios is not a key", "did you mean radius?"),
        ),
        (
            {"shape": {"type": "circle", "z": 1}},
            ("shape.z", "shape.z is not a key", "the keys are type, colour, radius, centre"),
        ),
        (
            {"shape": {"type": "circle", "centre": [1]}},
            (
                "shape.centre",
                "shape.centre expects a list of 2, each an integer, or null",
                "",
            ),
        ),
        (
            {"frame": 1},
            ("frame", "frame expects a mapping of keys, or null, got 1", ""),
        ),
    ],
)
def test_an_error_names_the_type_and_what_it_takes(values: dict[str, Any], refusal: tuple[str, ...]) -> None:
    assert refusals(values) == [refusal]


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["type", "side", "radius"]), inner),
    )
)
def test_no_value_of_a_section_is_a_crash(value: Any) -> None:
    with suppress(ConfigError):
        assert isinstance(drawing({"shape": value}).shape, Square | Circle)


def test_the_keys_of_all_types_are_known_and_say_whose_they_are() -> None:
    assert all_keys(Drawing)[:6] == (
        "title",
        "shape.type",
        "shape.colour",
        "shape.side",
        "shape.radius",
        "shape.centre",
    )
    kind, colour, radius = (describe_field(("shape", name), Drawing) for name in ("type", "colour", "radius"))
    assert kind is not None
    assert colour is not None
    assert radius is not None
    assert (kind.type, kind.default, kind.choices) == (
        "one of square, circle",
        "square",
        ("square", "circle"),
    )
    assert (colour.tags, radius.tags) == ((), ("circle",))


def test_the_json_schema_takes_either_type_and_not_their_mixture() -> None:
    validator = jsonschema.Draft202012Validator(json_schema(Drawing))
    assert validator.is_valid({"shape": {"side": 1}})
    assert validator.is_valid({"shape": {"type": "circle", "radius": 1}})
    assert not validator.is_valid({"shape": {"type": "circle", "side": 1}})
    assert not validator.is_valid({"shape": {"type": "hexagon"}})


def test_a_profile_of_another_model_leaves_no_sizes() -> None:
    """The sizes of a NeoBERT would change the shape of a transformers model silently."""
    overrides = ("model.type=hf", "model.architecture=bert", "model.num_hidden_layers=2")
    model = resolve_run("cpu", overrides=overrides).config.model
    assert (model.hidden_size, model.num_hidden_layers) == (None, 2)
