"""Location of plug-ins: the file of `path.py:function`, `package.module:function` or an entry point.

Nothing is imported: the launcher must not run code of a plug-in.
"""

from __future__ import annotations

import json
import os.path
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, EntryPoint, entry_points, packages_distributions
from importlib.util import find_spec
from pathlib import Path

GROUP = "neobert_launch.plugins"
FORMS = "path/to/file.py:function, package.module:function, or the name of an entry point"


class PluginProblemError(Exception):
    """Raised for a plug-in that cannot be used, with a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


@dataclass(frozen=True, slots=True)
class PluginLocation:
    """Location of a plug-in's function.

    Attributes:
        file: source file of its module.
        module: name under which the module is imported.
        function: name of the function or class in the module.
        folder: user's folder that contains the module and its imports; None for an installed package.
        package: name and version of the installed package; empty for files of the user.
    """

    file: Path
    module: str
    function: str
    folder: Path | None
    package: str = ""


def locate_plugin(text: str) -> PluginLocation:
    """Locate a plug-in's function without importing it. Raises `PluginProblemError`."""
    target, colon, function = text.rpartition(":")
    if not colon:
        found = _entry_point(text)
        return locate_plugin(f"{found.module}:{found.attr}")
    if not function.isidentifier():
        raise PluginProblemError(f"{text!r} does not end with the name of a function", f"write {FORMS}")
    if target.endswith(".py"):
        return _location_in_file(target, function)
    if not all(part.isidentifier() for part in target.split(".")):
        raise PluginProblemError(f"{target!r} is neither a .py file nor a module", f"write {FORMS}")
    return _location_in_module(target, function)


def _entry_point(name: str) -> EntryPoint:
    offered = entry_points(group=GROUP)
    found = next(iter(offered.select(name=name)), None)
    if found is None or ":" not in found.value:
        names = ", ".join(sorted(offered.names)) or "none"
        message = f"no installed package has the entry point {name!r} in group {GROUP}"
        raise PluginProblemError(message, f"write path/to/file.py:function, or an entry point ({names})")
    return found


def _location_in_file(target: str, function: str) -> PluginLocation:
    file = Path(os.path.expanduser(target))
    if not file.is_file():
        message = f"{target!r} does not exist"
        raise PluginProblemError(message, "set the key to an existing file (relative to the run file)")
    if not file.stem.isidentifier():
        message = f"{target!r} cannot be imported: {file.stem!r} is not a Python identifier"
        raise PluginProblemError(message, "rename the file to letters, digits and underscores")
    return PluginLocation(file, file.stem, function, file.parent)


def _location_in_module(module: str, function: str) -> PluginLocation:
    top, *rest = module.split(".")
    spec = find_spec(top)  # of a top-level name, which imports nothing
    roots = [] if spec is None else [Path(each) for each in spec.submodule_search_locations or ()]
    if spec is not None and not roots and spec.origin and not rest:
        file: Path | None = Path(spec.origin)
    else:
        file = next(filter(None, (module_file(root, rest) for root in roots)), None)
    if file is None or file.suffix != ".py":
        message = f"there is no module {module!r} with Python source"
        hint = (
            f"install the package of {module}, or write the path of a file, as in folder/{top}.py:{function}"
        )
        raise PluginProblemError(message, hint)
    package, is_editable = _installed_package(top)
    if package and not is_editable:
        return PluginLocation(file, module, function, None, package)
    folder = next((root.parent for root in roots if file.is_relative_to(root)), file.parent)
    return PluginLocation(file, module, function, folder)


def module_file(root: Path, parts: list[str]) -> Path | None:
    """Return the source file of a module below a package's folder; None if there is none."""
    file = root.joinpath(*parts, "__init__.py")
    if not file.is_file() and parts:
        file = root.joinpath(*parts[:-1], f"{parts[-1]}.py")
    return file if file.is_file() else None


def _installed_package(top: str) -> tuple[str, bool]:
    """Return name and version of a top-level module's package, and whether its install is editable.

    The name is empty if no installed package provides the module.
    """
    names = _packages_by_module(tuple(sys.path)).get(top, [])
    if not names:
        return "", False
    package = Distribution.from_name(names[0])
    about = json.loads(package.read_text("direct_url.json") or "{}")
    return f"{package.name} {package.version}", bool(about.get("dir_info", {}).get("editable"))


@cache
def _packages_by_module(_path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Return the packages that provide each top-level module; cached, as it reads all package metadata."""
    return packages_distributions()
