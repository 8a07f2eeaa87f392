"""Code of a run's plug-ins: its digests, for the config, and its problems."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from neobert.config.corpora import PLUGGED
from neobert.config.document import Document
from neobert.config.layers import GIVEN
from neobert.config.nodes import DEFAULT, Flaw, Origin, build
from neobert.config.resolution import Resolution
from neobert.config.schema import DatasetConfig, PluginsConfig, RunConfig
from neobert.plugins.changes import MARK
from neobert.plugins.kinds import DATASET, SECTION, Requested, requested
from neobert.plugins.reference import Place, PluginProblemError, locate
from neobert.plugins.source import check_function, imported_files, read_source

CODE = "PLG001"
TEXT = ("path", "name", "mixture")

Origins = Mapping[str, Origin]
Problem = tuple[Requested, PluginProblemError]


class Located(NamedTuple):
    """A plug-in and its place."""

    requested: Requested
    place: Place


@dataclass(slots=True)
class Code:
    """The code of the plug-ins.

    Attributes:
        located: the plug-ins without a problem.
        files: path under which it is imported, and SHA-256, of each file of the user, by its path relative to
            the plug-in's folder. The folder is resolved, and links in it are not.
        packages: name and version of each installed package.
        problems: plug-ins that cannot be used, with the problem.
    """

    located: list[Located] = field(default_factory=list)
    files: dict[str, tuple[Path, str]] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def lines(self) -> tuple[str, ...]:
        """Return the value of `plugins.code`: a line for each file, and for each package."""
        files = (f"{digest}{MARK}{name}" for name, (_, digest) in sorted(self.files.items()))
        return (*files, *sorted(self.packages))


def code_of(plugins: PluginsConfig) -> Code:
    """Read the files of all plug-ins of a config, without running them."""
    code = Code()
    for each in requested(plugins):
        try:
            place = locate(each.text)
            check_function(place, each.kind, read_source(place.file)[1])
            _add(code, place)
            code.located.append(Located(each, place))
        except PluginProblemError as problem:
            code.problems.append((each, problem))
    return code


def _add(code: Code, place: Place) -> None:
    if place.folder is None:
        code.packages.add(place.package)
        return
    folder = place.folder.resolve()
    for name, content in imported_files(place).items():
        file = folder / name
        known = code.files.get(name)
        if known is not None and known[0] != file:
            message = f"{str(known[0])!r} and {str(file)!r} would be imported under the same name"
            raise PluginProblemError(message, "rename one of the files")
        code.files[name] = (file, hashlib.sha256(content).hexdigest())


def layer_of(resolution: Resolution) -> Document:
    """Return the values that plug-ins add to a config, with the errors of plug-ins that cannot be used.

    Code is named by the user, in a run file or an argument: code named in a profile is an error, because an
    environment variable may select the folder of profiles.
    """
    config, origins = resolution.config, resolution.origins
    code = code_of(config.plugins)
    problems = [*code.problems, *_named_elsewhere(code, origins), *_with_other_text(config, origins)]
    flaws = [
        Flaw(
            CODE,
            each.path,
            f"{each.key}: {problem.message}",
            problem.hint,
            _at(each, origins),
        )
        for each, problem in problems
    ]
    values: dict[str, Any] = {"plugins": {"code": list(code.lines())}}
    if config.plugins.dataset is not None:
        is_given = origins.get("dataset.train_split", DEFAULT).kind in GIVEN
        train_split = config.dataset.train_split if is_given else DatasetConfig().train_split
        values["dataset"] = {"name": PLUGGED, "path": None, "mixture": [], "train_split": train_split}
    named = sorted(requested(config.plugins), key=lambda each: each.kind is not DATASET)
    origin = _at(named[0], origins)
    return Document(origin.file, "file", build(values, lambda _: (origin, origin), flaws), (), tuple(flaws))


def _named_elsewhere(code: Code, origins: Origins) -> Iterator[Problem]:
    for each, _ in code.located:
        if _at(each, origins).kind not in GIVEN:
            name = f"{SECTION}{each.kind.name}"
            message = "code is named in a run file or an argument, not in a profile"
            yield each, PluginProblemError(message, f"set {name} in the run file")


def _with_other_text(config: RunConfig, origins: Origins) -> Iterator[Problem]:
    for each in requested(config.plugins):
        for name in TEXT if each.kind is DATASET else ():
            value, origin = getattr(config.dataset, name), origins.get(f"dataset.{name}", DEFAULT)
            if value and value != PLUGGED and origin.kind in GIVEN:
                message = f"dataset.{name} is set too"
                yield each, PluginProblemError(message, f"remove dataset.{name} or {each.key}")


def _at(each: Requested, origins: Origins) -> Origin:
    return origins.get(each.key) or origins.get(SECTION + each.kind.name, DEFAULT)
