"""Keys of a run file with their comments, the config that they give, and the YAML text of the file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from neobert.config import ConfigError
from neobert.config.canonical import flatten, to_dict
from neobert.config.keys import path_keys, pinned_keys
from neobert.config.migrated_files import yaml_text
from neobert.config.schema import RunConfig
from neobert.printable import printable
from neobert.tasks.specs import SPECS
from profiles.registry import resolve_run

LONG_LINE = 50
"""Length from which a line does not move the column of the comments."""
SMALL = 0.01
NO_GLOSSES: Mapping[str, str] = {}


class Entry(NamedTuple):
    """A key of the run file.

    Attributes:
        is_stated: whether the key is kept even if it has its default value, because a rule requires it.
    """

    key: str
    value: Any
    comment: str = ""
    is_stated: bool = False


def resolve_entries(entries: Sequence[Entry], device: str) -> RunConfig:
    """Return the config for a run with these entries and the device's profile."""
    given = [f"{each.key}={yaml_text(each.value)}" for each in entries if each.key != "profile"]
    return resolve_run(device, (), given).config


def declared_entries(task: str, folder: Path, device: str) -> Iterator[Entry]:
    """Yield the keys of a task with the values that the weights declare, or that config.json states.

    A key that does not accept the value in config.json gets its default, with a comment to correct it.
    """
    spec = SPECS[task]
    stated = [
        Entry(key, value, "as the weights declare") for key, value in spec.declared_keys(folder).items()
    ]
    yield from stated
    entries = [Entry("task", task), *stated]
    config = resolve_entries(entries, device)
    for key, value in spec.differing_keys(config, folder).items():
        with suppress(ConfigError):  # a value that the key may not have
            resolve_entries([*entries, Entry(key, value)], device)
            yield Entry(key, value, "from config.json of the weights")
            continue
        comment = f"the weights declare {printable(value)}; set the value that they were trained with"
        yield Entry(key, flatten(to_dict(config))[key], comment, is_stated=True)


def changes_config(entry: Entry, entries: Sequence[Entry], config: RunConfig, device: str) -> bool:
    """Return whether the run's config would change, or be invalid, without the entry."""
    others = [each for each in entries if each is not entry]
    if entry.is_stated:
        return True
    try:
        return resolve_entries(others, device) != config
    except ConfigError:
        return True


def entries_yaml(entries: Sequence[Entry], folder: Path, glosses: Mapping[str, str] = NO_GLOSSES) -> str:
    """Return the lines of a file in `folder`, with sections in the order of their first key.

    Relative paths are written relative to `folder`. `glosses` has comments on sections, by section.
    """
    sections: dict[str, list[tuple[str, str]]] = {}
    keys = {tuple(each.key.split(".")) for each in entries}
    for key, value, comment, _ in entries:
        section, _, name = key.rpartition(".")
        reserved = path_keys().get((section, name))
        is_path = reserved is not None and value not in reserved
        is_on_disk = is_path and pinned_keys().get((section, name)) not in keys
        if is_on_disk and not os.path.isabs(value) and not value.startswith("~"):
            value = os.path.relpath(value, folder)
        line = f"{'  ' if section else ''}{name}: {_short_number_text(value) or yaml_text(value)}"
        sections.setdefault(section, []).append((line, comment))
    lines = list[tuple[str, str]]()
    for section, own in sections.items():
        lines += [("", ""), (f"{section}:", glosses.get(section, ""))] if section else []
        lines += own
    width = max(len(text) for text, comment in lines if comment and len(text) < LONG_LINE)
    return "".join(f"{text:{width}}  # {comment}\n" if comment else f"{text}\n" for text, comment in lines)


def _short_number_text(value: object) -> str:
    """Return a small number with one significant digit as in 5e-5; empty for other values."""
    text = f"{value:.0e}" if isinstance(value, float) and 0 < value < SMALL else ""
    return text.replace("e-0", "e-") if text and float(text) == value else ""
