"""Resolution of a config: merge files, overrides and variables; validate; record each value's origin."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

from neobert.config.canonical import digest, to_dict
from neobert.config.document import Document, Sources
from neobert.config.errors import ConfigError
from neobert.config.hydrate import HydrationError, hydrate
from neobert.config.keys import all_keys
from neobert.config.layers import (
    SectionsRead,
    lay_over,
    resolve_file_relative_paths,
    unread_section_flaws,
    with_tokenizer_of_weights,
)
from neobert.config.nodes import COMMAND_LINE, DEFAULT, Flaw, Node, Origin, Path, join, to_plain_value, walk
from neobert.config.overrides import Override, override_layer
from neobert.config.schema import RunConfig
from neobert.config.variables import References, references_in, substitute, unresolved_reference_flaws
from neobert.plurals import counted

T = TypeVar("T")

MAX_EXPLAINED = 200
MAX_ATTEMPTS = 3
UNRESOLVED_VARIABLE = "CFG012"
EMPTY = Node({}, DEFAULT, DEFAULT)


class FrozenDict(dict[str, Any]):
    """Read-only dict that supports pickling, copying and JSON serialization."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the configuration is frozen: create a changed copy with neobert.config.replace")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


class Resolution(NamedTuple):
    """Configuration with the origin of each value, and the variables that it uses."""

    config: RunConfig
    origins: Mapping[str, Origin]
    references: References

    @property
    def digest(self) -> str:
        """SHA-256 of the configuration."""
        return digest(self.config)


def resolve(
    layers: Sequence[Document],
    overrides: Sequence[Override] = (),
    sections_read: SectionsRead = MappingProxyType({}),
) -> Resolution:
    """Merge the documents, then the overrides, and build the configuration.

    `sections_read`: sections that each task reads; setting another one is an error.
    Raises ConfigError with every problem of every layer.
    """
    config, root, references = _merge_layers(layers, overrides, sections_read)
    return Resolution(config, _key_origins(root), references)


def _merge_layers(
    layers: Sequence[Document],
    overrides: Sequence[Override] = (),
    sections_read: SectionsRead = MappingProxyType({}),
) -> tuple[RunConfig, Node, References]:
    """Return the configuration, its tree of values with positions, and the variables that it uses."""
    documents = [*layers, *map(override_layer, overrides)]
    sources = collect_sources(layers, overrides)
    root = EMPTY
    for document in documents:
        root = lay_over(root, document.root)
    references = references_in(root)
    root, unresolved = substitute(root, references)
    root = with_tokenizer_of_weights(resolve_file_relative_paths(root))
    flaws = (
        [flaw for document in documents for flaw in document.flaws]
        + unresolved
        + [*unresolved_reference_flaws(root)]
    )
    flaws += unread_section_flaws(root, sections_read)
    config = build(RunConfig, root, sources, flaws)
    config = dataclasses.replace(config, variables=freeze(config.variables))
    return config, root, references


def build(kind: type[T], root: Node, sources: Sources, flaws: Sequence[Flaw] = ()) -> T:
    """Convert a tree to a validated dataclass of type `kind`.

    Raises ConfigError with the given flaws and every schema error.
    """
    found = list(flaws)
    value: T | None = None
    try:
        value = hydrate(kind, to_plain_value(root))
    except HydrationError as error:
        from neobert.config.schema_errors import explain_problem

        # A key that is given twice has a value all the same; one that could not be read has none.
        known = {flaw.path for flaw in found if flaw.code != "CFG002"}
        for problem in error.problems[:MAX_EXPLAINED]:
            if not _is_below(problem.path, known):
                found += explain_problem(problem, root, kind)
        found += _remaining_problems(len(error.problems) - MAX_EXPLAINED, root)
    if found or value is None:
        raise ConfigError(
            [sources.issue(flaw) for flaw in _deduplicate_variable_flaws(_sort_by_origin(found))]
        )
    return value


def resolve_accepted_values(
    layers: Sequence[Document], overrides: Sequence[Override] = ()
) -> Resolution | None:
    """Resolve files of another trainer, dropping values that the schema rejects.

    Returns None if no key is translated, or if errors remain after `MAX_ATTEMPTS` attempts.
    """
    from neobert.config.migrated_files import to_own_schema, without_paths

    translated = [to_own_schema(document) for document in layers]
    if not any(translated):
        return None
    readable = [ours or document for ours, document in zip(translated, layers, strict=True)]
    for _ in range(MAX_ATTEMPTS):
        try:
            return resolve(readable, overrides)
        except ConfigError as error:
            refused = [tuple(issue.path.split(".")) for issue in error.issues]
            readable = [without_paths(document, refused) for document in readable]
    return None


def _remaining_problems(num_problems: int, root: Node) -> list[Flaw]:
    if num_problems <= 0:
        return []
    message = counted(num_problems, "more problem")
    return [Flaw("CFG003", (), message, "check the path: this may not be a run file", root.origin)]


def from_dict(mapping: Mapping[str, Any]) -> RunConfig:
    """Build a configuration from plain values, such as the content of resolved.json. Raises ConfigError."""
    return _merge_layers([Document.from_mapping(mapping)])[0]


def replace(config: RunConfig, path: str, value: Any) -> RunConfig:
    """Return a configuration with one key changed, fully validated. Raises ConfigError."""
    changed: Any = value
    for name in reversed(path.split(".")):
        changed = {name: changed}
    return _merge_layers([Document.from_mapping(to_dict(config)), Document.from_mapping(changed)])[0]


def collect_sources(layers: Sequence[Document], overrides: Sequence[Override] = ()) -> Sources:
    """Return the source lines of files and of command-line arguments, which error messages quote."""
    lines = {document.file: document.lines for document in layers if document.lines}
    if overrides:
        last = max(override.position for override in overrides)
        arguments = {override.position: override.argument for override in overrides}
        lines[COMMAND_LINE] = tuple(arguments.get(position, "") for position in range(1, last + 1))
    return Sources(lines)


def _is_below(path: Path, known: set[Path]) -> bool:
    return any(path[:length] in known for length in range(1, len(path) + 1))


def _sort_by_origin(flaws: list[Flaw]) -> list[Flaw]:
    return sorted(
        flaws, key=lambda flaw: (flaw.origin.kind == "override", flaw.origin.file, flaw.origin.line)
    )


def _deduplicate_variable_flaws(flaws: Iterable[Flaw]) -> Iterator[Flaw]:
    """Yield the flaws; equal errors about a variable are yielded once."""
    reported: set[str] = set()
    for flaw in flaws:
        if flaw.code != UNRESOLVED_VARIABLE or flaw.message not in reported:
            yield flaw
        reported.add(flaw.message)


def _key_origins(root: Node) -> Mapping[str, Origin]:
    """Return the origin of every key, and of every section, list item and variable that a source sets."""
    origins = dict.fromkeys(all_keys(), DEFAULT)
    for path, node in walk(root):
        origins[join(path)] = node.key if isinstance(node.value, dict) else node.origin
    return MappingProxyType(origins)


def freeze(value: Any) -> Any:
    """Freeze a plain value recursively: FrozenDict for mappings, tuples for lists."""
    if isinstance(value, dict):
        return FrozenDict({name: freeze(child) for name, child in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value
