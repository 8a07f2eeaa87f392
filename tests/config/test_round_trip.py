"""Dump, load, dump: one configuration, one text, one digest."""

import json
from dataclasses import MISSING, fields
from datetime import date
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config import (
    ConfigError,
    RunConfig,
    digest,
    from_dict,
    replace,
    to_dict,
)
from neobert.config.annotations import (
    TAG,
    is_union,
    members_by_tag,
    section_members,
    type_hints,
    type_tag,
    unwrap,
)


def _is_plain(text: str) -> bool:
    """Without references to variables, which are resolved or refused."""
    return "variables" not in text and "$" not in text


TEXT = st.text(max_size=20).filter(_is_plain)
NAME = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
SCALARS = st.none() | st.booleans() | st.integers(1 - 2**63, 2**63 - 1) | TEXT
SCALARS |= st.floats(allow_nan=False, allow_infinity=False)
FREE = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAME, inner, max_size=3)
)


def bounds(metadata: list[Any]) -> dict[str, Any]:
    """Bounds of an annotation, as hypothesis names them."""
    found: dict[str, Any] = {}
    for bound in metadata:
        if bound.name in ("ge", "gt"):
            found |= {"min_value": bound.limit, "exclude_min": bound.name == "gt"}
        elif bound.name in ("le", "lt"):
            found |= {"max_value": bound.limit, "exclude_max": bound.name == "lt"}
        else:
            assert bound.name == "min_length"
            found |= {"min_size": int(bound.limit)}
    return found


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Plain values that a key takes."""
    bare, is_optional = unwrap(annotation)
    if is_optional:
        return st.none() | values(next(part for part in get_args(annotation) if part is not type(None)))
    limits = bounds(list(get_args(annotation)[1:])) if get_origin(annotation) is Annotated else {}
    if get_origin(bare) is Literal:
        return st.sampled_from(get_args(bare))
    if members := section_members(bare):
        return st.one_of(*(mappings(member, tags_of(bare, member)) for member in members))
    if is_union(bare):
        return st.one_of(*map(values, get_args(bare)))
    if get_origin(bare) is tuple:
        items = get_args(bare)
        return (
            st.lists(values(items[0]), max_size=2)
            if items[-1] is Ellipsis
            else st.tuples(*map(values, items)).map(list)
        )
    if bare is int:
        low = limits.get("min_value", 0) + limits.get("exclude_min", False)
        return st.integers(low, limits.get("max_value", 2**63 - 1))
    if bare is float:
        low = limits.get("min_value", 0.0)
        return st.floats(allow_nan=False, allow_infinity=False, **limits) | st.just(low + 0.5)
    if bare is str:
        return st.text(**limits).filter(_is_plain) | st.just("1e5 is not text")
    if bare is date:
        return st.dates().map(date.isoformat)
    if bare is bool:
        return st.booleans()
    return st.dictionaries(NAME, FREE, max_size=3)


def tags_of(section: Any, member: Any) -> dict[str, st.SearchStrategy[Any]]:
    """The key that chooses a member of a discriminated section; nothing for any other section."""
    return {TAG: st.just(type_tag(member))} if members_by_tag(section) else {}


def mappings(
    kind: Any, chosen: dict[str, st.SearchStrategy[Any]] | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings that give some keys of a section, and all that it requires."""
    hints = type_hints(kind)
    needed = {field.name for field in fields(kind) if field.default is field.default_factory is MISSING}
    required = {name: values(hint) for name, hint in hints.items() if name in needed} | (chosen or {})
    optional = {name: values(hint) for name, hint in hints.items() if name not in required}
    return st.fixed_dictionaries(required, optional=optional)


CONFIGS = mappings(RunConfig)


@given(CONFIGS)
def test_the_plain_form_is_json_and_builds_the_same_configuration(values):
    config = from_dict(values)
    plain = to_dict(config)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert list(plain) == sorted(plain)
    assert from_dict(plain) == config
    assert digest(from_dict(json.loads(json.dumps(plain)))) == digest(config)


@given(CONFIGS, st.sampled_from(["seed", "trainer.max_steps", "dataset.max_seq_length"]))
def test_the_digest_tells_configurations_apart(values, key):
    config = from_dict(values)
    section, _, name = key.rpartition(".")
    before = getattr(getattr(config, section) if section else config, name)
    assert digest(replace(config, key, 1 if before != 1 else 2)) != digest(config)


def test_the_digest_does_not_depend_on_the_order_or_the_spelling(resolve_text):
    first = resolve_text("seed: 0x10\noptimizer: {lr: 6e-4, eps: 1}\n")
    second = resolve_text("optimizer:\n  eps: 1.0\n  lr: 0.0006\nseed: 16\n")
    assert first.digest == second.digest


def test_the_digest_of_the_defaults_is_pinned():
    plain = json.dumps(to_dict(from_dict({})), sort_keys=True, separators=(",", ":"))
    assert plain.isascii()
    assert plain.startswith('{"adapter":{"alpha":16,"dropout":0.0,')


def test_replace_rebuilds_and_checks():
    config = from_dict({"seed": 1})
    changed = replace(config, "optimizer.betas", (0.8, 0.9))
    assert (config.optimizer.betas, changed.optimizer.betas) == ((0.9, 0.999), (0.8, 0.9))
    assert changed.seed == 1
    with pytest.raises(ConfigError, match=r"trainer\.max_steps expects an integer above 0, got 1\.5"):
        replace(config, "trainer.max_steps", 1.5)
    with pytest.raises(ConfigError, match=r"did you mean trainer\.max_steps\?"):
        replace(config, "trainer.max_step", 1)


def test_from_dict_is_as_strict_as_a_file():
    for values in (
        {"seed": True},
        {"seed": float("nan")},
        {1: 2},
        {"wandb": {"name": "\ud800"}},
        {"seed": 2**70},
    ):
        with pytest.raises(ConfigError):
            from_dict(values)  # type: ignore[arg-type]
