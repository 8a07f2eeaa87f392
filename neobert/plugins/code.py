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
from neobert.plugins.kinds import DATASET, SECTION, RequestedPlugin, requested_plugins
from neobert.plugins.reference import PluginLocation, PluginProblemError, locate_plugin
from neobert.plugins.source import check_function, imported_files, read_source

CODE = "PLG001"
TEXT = ("path", "name", "mixture")

Origins = Mapping[str, Origin]
Problem = tuple[RequestedPlugin, PluginProblemError]


class LocatedPlugin(NamedTuple):
    """A plug-in and the location of its function."""

    requested: RequestedPlugin
    place: PluginLocation


@dataclass(slots=True)
class PluginCode:
    """The code of the plug-ins.

    Attributes:
        located: the plug-ins without a problem.
        files: import path and SHA-256 of each user file, by path relative to the plug-in's folder. Symlinks
            are resolved in the folder's path, not below it.
        packages: name and version of each installed package.
        problems: plug-ins that cannot be used, with the problem.
    """

    located: list[LocatedPlugin] = field(default_factory=list)
    files: dict[str, tuple[Path, str]] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def lines(self) -> tuple[str, ...]:
        """Return the value of `plugins.code`: one line per file and per package."""
        files = (f"{digest}{MARK}{name}" for name, (_, digest) in sorted(self.files.items()))
        return (*files, *sorted(self.packages))


def collect_plugin_code(plugins: PluginsConfig) -> PluginCode:
    """Read the files of all plug-ins of a config, without running them."""
    code = PluginCode()
    for each in requested_plugins(plugins):
        try:
            place = locate_plugin(each.text)
            check_function(place, each.kind, read_source(place.file)[1])
            _add_imported_files(code, place)
            code.located.append(LocatedPlugin(each, place))
        except PluginProblemError as problem:
            code.problems.append((each, problem))
    return code


def _add_imported_files(code: PluginCode, place: PluginLocation) -> None:
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


def plugin_layer(resolution: Resolution) -> Document:
    """Build the config layer that plug-ins add, with errors for plug-ins that cannot be used.

    With a dataset plug-in, the layer also replaces the text of the section `dataset`. Plug-ins named in a
    profile are errors, because an environment variable can select the profile folder.
    """
    config, origins = resolution.config, resolution.origins
    code = collect_plugin_code(config.plugins)
    problems = [
        *code.problems,
        *_problems_in_profiles(code, origins),
        *_problems_with_other_text(config, origins),
    ]
    flaws = [
        Flaw(
            CODE,
            each.path,
            f"{each.key}: {problem.message}",
            problem.hint,
            _plugin_origin(each, origins),
        )
        for each, problem in problems
    ]
    values: dict[str, Any] = {"plugins": {"code": list(code.lines())}}
    if config.plugins.dataset is not None:
        is_given = origins.get("dataset.train_split", DEFAULT).kind in GIVEN
        train_split = config.dataset.train_split if is_given else DatasetConfig().train_split
        values["dataset"] = {"name": PLUGGED, "path": None, "mixture": [], "train_split": train_split}
    named = sorted(requested_plugins(config.plugins), key=lambda each: each.kind is not DATASET)
    origin = _plugin_origin(named[0], origins)
    return Document(origin.file, "file", build(values, lambda _: (origin, origin), flaws), (), tuple(flaws))


def _problems_in_profiles(code: PluginCode, origins: Origins) -> Iterator[Problem]:
    for each, _ in code.located:
        if _plugin_origin(each, origins).kind not in GIVEN:
            name = f"{SECTION}{each.kind.name}"
            message = "code is named in a run file or an argument, not in a profile"
            yield each, PluginProblemError(message, f"set {name} in the run file")


def _problems_with_other_text(config: RunConfig, origins: Origins) -> Iterator[Problem]:
    for each in requested_plugins(config.plugins):
        for name in TEXT if each.kind is DATASET else ():
            value, origin = getattr(config.dataset, name), origins.get(f"dataset.{name}", DEFAULT)
            if value and value != PLUGGED and origin.kind in GIVEN:
                message = f"dataset.{name} is set too"
                yield each, PluginProblemError(message, f"remove dataset.{name} or {each.key}")


def _plugin_origin(plugin: RequestedPlugin, origins: Origins) -> Origin:
    return origins.get(plugin.key) or origins.get(SECTION + plugin.kind.name, DEFAULT)
