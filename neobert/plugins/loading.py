"""Plug-ins in a child process: imported from files that match the config, and called.

The launcher never imports this module.
"""

from __future__ import annotations

import hashlib
import logging
import os.path
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from neobert.config.schema import PluginsConfig
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.plugins.changes import REMOVED, changed_files
from neobert.plugins.code import code_of
from neobert.plugins.kinds import Kind
from neobert.plugins.source import is_installed
from neobert.plugins.time_limit import OverdueError, within_limit
from neobert.printable import printable

log = logging.getLogger(__name__)

RAISED, CHANGED = "PLG002", "PLG003"


class PluginError(ProjectError):
    """Failure of a plug-in: an exception that it raised, or an invalid result."""


@dataclass(frozen=True, eq=False)
class Plugin:
    """A user-defined function.

    Attributes:
        key: its key in the run file, such as plugins.metrics.0.
        name: name of the function.
        label: file and name of the function, for messages.
        function: the function. Call the plug-in instead, which reports exceptions.
        files: the user's files, to name the line of an exception.
    """

    kind: Kind
    key: str
    name: str
    label: str
    function: Callable[..., Any]
    files: frozenset[str]

    def __call__(self, *arguments: Any) -> Any:
        """Call the function. Raises `PluginError` with the file and line of an exception."""
        return self.guarded(self.function, *arguments)

    def guarded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the plug-in. Raises `PluginError` with the file and line of an exception."""
        try:
            with within_limit():
                return function(*arguments)
        except OverdueError as error:
            raise self.error_of(error, str(error)) from None
        except (Exception, SystemExit) as error:
            if type(error).__name__ == "OutOfMemoryError":  # rehearsal and trainer have a hint for it
                raise
            log.error("%s raised an exception\n%s", self.label, _printed(error))
            raise self.error_of(error) from error

    def error_of(self, error: BaseException, problem: str = "") -> PluginError:
        """Return the error of an exception, with the last line of the user's files that raised it."""
        frames = traceback.extract_tb(error.__traceback__)
        own = next((each for each in reversed(frames) if each.filename in self.files), None)
        place = printable(f"{own.filename}:{own.lineno}") if own is not None else self.label
        raised = f"raised {type(error).__name__}: {_first_line(error)}"
        hint = f"fix {place}" if problem else f"fix {place}; the log has the traceback"
        return self.refusal(f"{self.key} ({self.name}) {problem or raised}", hint, place)

    def refusal(self, message: str, hint: str, place: str = "") -> PluginError:
        """Return the error of a plug-in."""
        return PluginError(RAISED, message, hint, place or self.label, EXIT_TRAINING_FAILED)

    def invalid(self, problem: str) -> PluginError:
        """Return the error of an invalid result."""
        hint = f"see neobert.plugins for what {self.key.partition('.')[0]}.{self.kind.name} returns"
        return self.refusal(f"{self.key} ({self.name}) {problem}", hint)


def _printed(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).rstrip("\n").split("\n")
    return "\n".join(printable(line, keep="\t") for line in lines)


def _first_line(error: BaseException) -> str:
    return printable((str(error).splitlines() or [""])[0][:300])


@lru_cache(maxsize=1)
def load_plugins(plugins: PluginsConfig) -> tuple[Plugin, ...]:
    """Import the plug-ins of a config; once per process.

    Raises `ProjectError` PLG003 if a file differs from `plugins.code`, and PLG002 if an import fails.
    """
    if not plugins.is_used:
        return ()
    code = code_of(plugins)
    if code.problems:
        requested, problem = code.problems[0]
        raise ProjectError("PLG001", f"{requested.key}: {problem.message}", problem.hint, requested.key)
    # A rehearsal leaves out hooks, and so does not need all files of the run.
    changes = changed_files(plugins.code, code.lines())
    if changed := [each for each in changes if not each.endswith(REMOVED)]:
        hint = "restore the file, or run the command again, which checks the edited file"
        raise ProjectError(CHANGED, f"{changed[0]} since the run was checked", hint, "plugins.code")
    digests = {str(path): digest for path, digest in code.files.values()}
    folders = {each.place.folder.resolve() for each in code.located if each.place.folder is not None}
    sys.meta_path.insert(0, _Finder(folders, digests))
    found = []
    for (kind, key, text), place in code.located:
        label = printable(text)
        loading = Plugin(kind, key, place.function, label, _not_loaded, frozenset(digests))
        module: ModuleType = loading.guarded(import_module, place.module)
        _require_origin(module, place.file, label)
        function = loading.guarded(getattr, module, place.function)
        if not callable(function):
            raise loading.invalid(f"is {type(function).__name__}, not a function")
        found.append(replace(loading, function=function))
        log.info("%s: %s", key, label)
    require_known_files(folders, digests)
    return tuple(found)


def _not_loaded() -> None:
    raise AssertionError("replaced once the module is imported")


def plugins_of(plugins: PluginsConfig, kind: Kind) -> tuple[Plugin, ...]:
    """Return the plug-ins of a kind. Raises as `load_plugins` does."""
    return tuple(each for each in load_plugins(plugins) if each.kind is kind)


def _require_origin(module: ModuleType, file: Path, text: str) -> None:
    """Raise `ProjectError` if another module of the name was imported before."""
    origin = getattr(module, "__file__", None)
    if origin is None or Path(origin).resolve() != file.resolve():
        message = f"{text} is hidden by the module {module.__name__} of {origin}"
        raise ProjectError(RAISED, message, f"rename {file.name}", text)


def require_known_files(folders: set[Path], digests: Mapping[str, str]) -> None:
    """Raise `ProjectError` if a module of the user's folders was imported that is not in `plugins.code`."""
    for module in list(sys.modules.values()):
        origin = getattr(module, "__file__", None)
        if not isinstance(origin, str) or not os.path.isabs(origin) or not origin.endswith(".py"):
            continue  # torch has modules whose file is a bare name
        if origin in digests:
            continue
        file = Path(origin).resolve()
        if any(map(file.is_relative_to, folders)) and not is_installed(file):
            raise ProjectError(RAISED, *_unknown(file), str(file))


def _unknown(file: Path) -> tuple[str, str]:
    message = (
        f"{file.name} is imported by a plug-in, but not by an import statement: it is not in plugins.code"
    )
    return message, f"import {file.stem} by an import statement, so that edits of {file.name} are noticed"


class _Finder(MetaPathFinder):
    """Finds modules of the plug-ins' folders, and only those of files in `plugins.code`.

    Other files of these folders are not importable. Other modules are left to the finders after this one:
    the folders never join `sys.path`, so a user's file hides no installed module.
    """

    def __init__(self, folders: set[Path], digests: Mapping[str, str]) -> None:
        self._folders, self._digests = sorted(folders), digests

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return the spec of a module in `plugins.code`; None for a module that others find."""
        tail = fullname.rpartition(".")[2]
        places = self._folders if path is None else [Path(each) for each in path]
        for place in places:
            if not any(map(place.is_relative_to, self._folders)) or (
                path is not None and is_installed(place)
            ):
                continue
            package = place / tail
            for file, search in ((package / "__init__.py", [str(package)]), (place / f"{tail}.py", None)):
                if digest := self._digests.get(str(file)):
                    loader = _VerifiedLoader(fullname, str(file), digest)
                    return spec_from_file_location(
                        fullname, file, loader=loader, submodule_search_locations=search
                    )
                if file.is_file() and (path is not None or _not_installed(self, fullname)):
                    raise ModuleNotFoundError(_unknown(file)[0], name=fullname)
            if any(Path(each).is_relative_to(package) for each in self._digests):
                spec = ModuleSpec(fullname, None, is_package=True)
                spec.submodule_search_locations = [str(package)]
                return spec
        return None


def _not_installed(finder: MetaPathFinder, name: str) -> bool:
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return False
    others = (each for each in sys.meta_path if each is not finder)
    return all(each.find_spec(name, None, None) is None for each in others)


class _VerifiedLoader(SourceFileLoader):
    """Loader that compiles the source with the digest of the config, and never a cached `.pyc`."""

    def __init__(self, fullname: str, path: str, digest: str) -> None:
        super().__init__(fullname, path)
        self._digest = digest

    def get_code(self, fullname: str) -> Any:
        """Compile the source file. Raises `ImportError` if it was edited since it was read."""
        content = self.get_data(self.path)
        if hashlib.sha256(content).hexdigest() != self._digest:
            raise ImportError(f"{Path(self.path).name} was edited since the run was checked", name=fullname)
        return self.source_to_code(content, self.path)
