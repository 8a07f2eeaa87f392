"""Recorded values of a run, kept when a later version changes a shipped profile or a default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any, Final, NamedTuple

from neobert.config.annotations import TAG
from neobert.config.canonical import flatten, to_dict
from neobert.config.document import Document
from neobert.config.keys import all_keys, discriminated_sections, key_effect, keys_replacing_others
from neobert.config.layers import lay_over, merge
from neobert.config.nodes import DEFAULT, Flaw, Origin, build, join
from neobert.config.resolution import EMPTY, Resolution
from neobert.runfiles.resume_policy import DEFAULTS
from profiles.inherit import PROFILE, SHIPPED, is_shipped

OUTPUT_DIR = "trainer.output_dir"
PLUGINS = "plugins."
RUN: Final = "run"


class RecordedRun(NamedTuple):
    """Record of a run directory, as its last launch wrote it.

    Attributes:
        file: path of the recorded config.
        config: canonical configuration.
        origins: origin of each value, by dotted key.
    """

    file: str
    config: Mapping[str, Any]
    origins: Mapping[str, Any]


def with_recorded_values(
    layers: Sequence[Document], resolution: Resolution, begun: RecordedRun
) -> tuple[Document, ...] | None:
    """Insert the recorded values of a run above the layers of the shipped profiles.

    Only values that the user set neither in the recorded run nor in `resolution` are inserted. Returns None
    if no value differs, or if the recorded run has another profile.
    """
    if begun.config.get(PROFILE) != resolution.config.profile:
        return None
    differing = dict(_differing_values(begun, resolution))
    if not differing:
        return None
    shipped = sum(is_shipped(layer.file) for layer in layers if layer.kind == "profile")
    return (*layers[:shipped], _build_document(layers[:shipped], differing, begun.file), *layers[shipped:])


def _differing_values(begun: RecordedRun, resolution: Resolution) -> Iterator[tuple[str, Any]]:
    current, saved = flatten(to_dict(resolution.config)), {**DEFAULTS, **flatten(begun.config)}
    other_types = _sections_of_another_type(saved, current)
    replaced = set(_replaced_by_user(saved, begun.origins))
    for key in all_keys():
        if key not in saved or key not in current or saved[key] == current[key]:
            continue
        is_of_the_run = key_effect(key) != "start" and key != OUTPUT_DIR and key not in replaced
        is_of_the_run &= not key.startswith(PLUGINS)  # code is never taken from a run directory
        is_of_the_user = not _is_shipped_now(resolution.origins.get(key, DEFAULT)) or _was_set_by_user(
            begun.origins.get(key)
        )
        if is_of_the_run and not is_of_the_user and key.partition(".")[0] not in other_types:
            yield key, saved[key]


def changed_keys(before: Resolution, after: Resolution) -> tuple[str, ...]:
    """Return the config keys whose values differ between two resolutions of a run."""
    both = flatten(to_dict(before.config)), flatten(to_dict(after.config))
    return tuple(key for key in all_keys() if both[0].get(key) != both[1].get(key))


def _sections_of_another_type(saved: Mapping[str, Any], current: Mapping[str, Any]) -> set[str]:
    named = ((section, f"{section}.{TAG}") for section in discriminated_sections())
    return {section for section, key in named if saved.get(key) != current.get(key)}


def _replaced_by_user(saved: Mapping[str, Any], origins: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys that are unset in the record because the user set a key that replaces them."""
    for path, others in keys_replacing_others().items():
        if saved.get(join(path)) not in (None, []) and _was_set_by_user(origins.get(join(path))):
            yield from map(join, others)


def _is_shipped_now(origin: Origin) -> bool:
    return origin.kind == "default" or (origin.kind == "profile" and is_shipped(origin.file))


def _was_set_by_user(origin: object) -> bool:
    """Return whether a recorded origin is a user's file or argument; True if the origin is not readable.

    The shipped profiles may have been in another folder then. A key without an origin did not exist.
    """
    if origin is None:
        return False
    kind, file = (origin.get("kind"), origin.get("file")) if isinstance(origin, Mapping) else (None, None)
    if kind == "profile" and isinstance(file, str):
        return Path(file).parts[-2:] not in _shipped_files()
    return kind not in ("default", RUN)


@cache
def _shipped_files() -> frozenset[tuple[str, ...]]:
    return frozenset(path.parts[-2:] for path in SHIPPED.glob("*/*.yaml"))


def _build_document(shipped: Sequence[Document], values: Mapping[str, Any], file: str) -> Document:
    origin, flaws, tree = Origin(RUN, file), list[Flaw](), dict[str, Any]()
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    below = reduce(lay_over, (layer.root for layer in shipped), EMPTY)
    root = merge(below, build(tree, lambda _: (origin, origin), flaws))
    return Document(file, RUN, root, (), tuple(flaws))
