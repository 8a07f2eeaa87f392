"""Profile files: discovery, inheritance, layers, and the hashes pinned in `profiles.lock`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from neobert.config.document import Document, load_document
from neobert.config.key_suggestions import closest_name
from neobert.config.nodes import Node, Origin
from neobert.errors import EXIT_USAGE, ProjectError

SHIPPED = Path(__file__).parent
FOLDERS_ENV = "NEOBERT_PROFILE_PATH"
ABOUT, EXTENDS, PROFILE = "about", "extends", "profile"
IDENTITY = "CFG005"
OPTION = "--profile"
LOCK = SHIPPED / "profiles.lock"


class Layers(NamedTuple):
    """A profile with its bases.

    Attributes:
        about: the profile's own document, which has the section `about`.
        documents: documents without `about` and `extends`, the base first.
        files: paths, the profile's own file first.
    """

    about: Document
    documents: tuple[Document, ...]
    files: tuple[str, ...]


def profile_files() -> dict[str, Path]:
    """Return the files of all profiles by name: shipped profiles, and profiles in NEOBERT_PROFILE_PATH.

    Raises ProjectError if two files have the same name.
    """
    files: dict[str, Path] = {}
    for path in (*_shipped_files(SHIPPED), *_user_files()):
        first = files.setdefault(path.stem, path)
        if first is not path and first.resolve() != path.resolve():
            message = f"profile name {path.stem} is already used by {display_path(first)}"
            raise identity_error(message, "rename the file and its about.name", display_path(path))
    return files


@cache
def _shipped_files(folder: Path) -> tuple[Path, ...]:
    """Return the sorted files of this project's profiles, which stay the same while a process runs."""
    return tuple(sorted(folder.glob("*/*.yaml")))


def _user_files() -> list[Path]:
    return [path for folder in _user_folders() for path in sorted(folder.glob("*.yaml"))]


def _user_folders() -> list[Path]:
    return [Path(part) for part in os.environ.get(FOLDERS_ENV, "").split(os.pathsep) if part]


def is_shipped(file: str) -> bool:
    """Return whether a profile file belongs to this project, by its own path or by its link target."""
    path = Path(file)
    own = Path(os.path.abspath(path))
    return own.is_relative_to(SHIPPED) or path.resolve().is_relative_to(SHIPPED.resolve())


def find_profile(name: str, place: str = "") -> Path:
    """Return the file of a profile. Raises ProjectError with a suggestion if there is no such profile."""
    files = profile_files()
    if name in files:
        return files[name]
    public = sorted(known for known in files if not known.startswith("_"))
    raise identity_error(f"unknown profile {name!r}", _profile_hint(name, public, place), place)


def _profile_hint(name: str, public: list[str], place: str) -> str:
    if place == OPTION and Path(name).is_file():
        return f"{name} is a file: use --config {name}"
    if near := closest_name(name, public):
        return f"did you mean {near}?"
    missing_folders = [str(folder) for folder in _user_folders() if not folder.is_dir()]
    missing = f"; missing folders in {FOLDERS_ENV}: {', '.join(missing_folders)}" if missing_folders else ""
    return f"available profiles: {', '.join(public)}{missing}"


def load_layers(path: Path) -> Layers:
    """Read a profile and its bases.

    Raises ProjectError if `extends` is circular or does not name a profile.
    """
    chain: list[Document] = []
    names: list[str] = []
    file: Path | None = path
    while file is not None:
        document = load_document(display_path(file), "profile")
        names.append(file.stem)
        if file.stem in names[:-1]:
            circle = " -> ".join(names[names.index(file.stem) :])
            message = f"the profiles extend each other in a circle: {circle}"
            raise identity_error(message, "change `extends:` in one profile", _base_position(chain[-1]))
        chain.append(document)
        file = _base_profile_file(document)
    stripped = tuple(without_keys(document, (ABOUT, EXTENDS)) for document in reversed(chain))
    return Layers(chain[0], stripped, tuple(document.file for document in chain))


def _base_profile_file(document: Document) -> Path | None:
    node = top_level_entries(document).get(EXTENDS)
    if node is None:
        return None
    place = _base_position(document)
    if not isinstance(node.value, str):
        raise identity_error("extends must be the name of one profile", "write extends: NAME", place)
    return find_profile(node.value, place)


def _base_position(document: Document) -> str:
    origin = top_level_entries(document)[EXTENDS].origin
    return f"{document.file}:{origin.line}:{origin.column}"


def top_level_entries(document: Document) -> dict[str, Node]:
    """Return the nodes of a document by top-level key; empty if the document is not a mapping."""
    return document.root.value if isinstance(document.root.value, dict) else {}


def is_profile(document: Document) -> bool:
    """Return whether a document is a profile: it has `about` or `extends`, which run files lack."""
    return ABOUT in top_level_entries(document) or EXTENDS in top_level_entries(document)


def named_profile(documents: Sequence[Document], name: str | None) -> tuple[str | None, str]:
    """Return the profile that --profile (`name`) or run files set, or None, and where it is set.

    Raises ProjectError if they set different profiles.
    """
    place = OPTION
    for document in documents:
        node = top_level_entries(document).get(PROFILE)
        if node is None or not isinstance(node.value, str):
            continue
        here = f"{document.file}:{node.origin.line}:{node.origin.column}"
        if name is not None and node.value != name:
            message = f"the file sets profile {node.value!r}, but {place} sets {name!r}"
            raise identity_error(message, "set only one profile", here)
        name, place = node.value, here
    return name, place


def without_null_profile(document: Document) -> Document:
    """Return the document without `profile: null`, which does not conflict with any profile.

    Configs written by runs without a profile contain this line.
    """
    node = top_level_entries(document).get(PROFILE)
    return document if node is None or node.value is not None else without_keys(document, (PROFILE,))


def with_profile_name(layers: Layers, name: str) -> Document:
    """Return a document that sets `profile: NAME`, located at the profile's section `about`."""
    key = top_level_entries(layers.about)[ABOUT].key
    origin = Origin("profile", layers.about.file, key.line, key.column)
    root = Node({PROFILE: Node(name, origin, origin)}, origin, origin)
    return replace(layers.about, root=root, flaws=())


def without_keys(document: Document, names: tuple[str, ...]) -> Document:
    """Return the document without these top-level keys."""
    kept = {name: node for name, node in top_level_entries(document).items() if name not in names}
    return replace(document, root=Node(kept, document.root.origin, document.root.key))


def display_path(path: Path) -> str:
    """Return a path as text, relative to the current directory if it is inside that directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def identity_error(message: str, hint: str, place: str) -> ProjectError:
    """Build the usage error for a profile that is missing, invalid or contradicts another."""
    return ProjectError(IDENTITY, message, hint, place, EXIT_USAGE)


def read_pins() -> dict[str, str]:
    """Return the pinned hash of each profile by name; empty if there is no profiles.lock.

    Raises ProjectError if profiles.lock cannot be read or is damaged.
    """
    try:
        pins = json.loads(LOCK.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _damaged_pins_error(f"{error}") from None
    if not isinstance(pins, dict) or not all(isinstance(digest, str) for digest in pins.values()):
        raise _damaged_pins_error("not a mapping of names to hashes")
    return pins


def write_pins(pins: dict[str, str]) -> None:
    """Write profiles.lock with the hash of each profile by name."""
    LOCK.write_text(json.dumps(pins, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _damaged_pins_error(reason: str) -> ProjectError:
    return ProjectError(
        code="CFG005",
        message=f"profiles.lock cannot be read: {reason}",
        hint="restore profiles.lock, or review every profile and run `python -m profiles.lock --write`",
        place=str(LOCK),
        exit_code=EXIT_USAGE,
    )
