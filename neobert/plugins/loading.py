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
from neobert.plugins.code import collect_plugin_code
from neobert.plugins.kinds import PluginKind
from neobert.plugins.source import is_installed
from neobert.plugins.time_limit import TimeLimitExceededError, enforce_limit
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

    kind: PluginKind
    key: str
    name: str
    label: str
    function: Callable[..., Any]
    files: frozenset[str]

    def __call__(self, *arguments: Any) -> Any:
        """Call the function. Raises `PluginError` with the file and line of an exception."""
        return self.call_guarded(self.function, *arguments)

    def call_guarded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the plug-in. Raises `PluginError` with the file and line of an exception."""
        try:
            with enforce_limit():
                return function(*arguments)
        except TimeLimitExceededError as error:
            raise self.error_from_exception(error, str(error)) from None
        except (Exception, SystemExit) as error:
            if type(error).__name__ == "OutOfMemoryError":  # rehearsal and trainer have a hint for it
                raise
            log.error("%s raised an exception\n%s", self.label, _format_traceback(error))
            raise self.error_from_exception(error) from error

    def error_from_exception(self, error: BaseException, problem: str = "") -> PluginError:
        """Build the error for an exception: last line in the user's files, and where it was raised."""
        frames = traceback.extract_tb(error.__traceback__)
        own = next((each for each in reversed(frames) if each.filename in self.files), None)
        place = self.label if own is None else _describe_line(own)
        raised = f"raised {type(error).__name__}: {_first_line(error)}"
        if frames and frames[-1] is not own and not problem:
            raised += f" (in {_describe_line(frames[-1])})"
        return self.build_error(f"{self.key} ({self.name}) {problem or raised}", f"fix {place}", place)

    def build_error(self, message: str, hint: str, place: str = "") -> PluginError:
        """Build the `PluginError` PLG002; `place` is by default the file and name of the function."""
        return PluginError(RAISED, message, hint, place or self.label, EXIT_TRAINING_FAILED)

    def invalid_result_error(self, problem: str) -> PluginError:
        """Build the error for an invalid result; `problem` is a predicate, such as "returned None"."""
        hint = f"see neobert.plugins for what {self.key.partition('.')[0]}.{self.kind.name} returns"
        return self.build_error(f"{self.key} ({self.name}) {problem}", hint)


def _describe_line(frame: traceback.FrameSummary) -> str:
    return printable(f"{frame.filename}:{frame.lineno}")


def _format_traceback(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).rstrip("\n").split("\n")
    return "\n".join(printable(line, keep="\t") for line in lines)


def _first_line(error: BaseException) -> str:
    return printable((str(error).splitlines() or [""])[0][:300])


@lru_cache(maxsize=1)
def load_plugins(plugins: PluginsConfig) -> tuple[Plugin, ...]:
    """Import the plug-ins of a config; once per process.

    Raises `ProjectError` PLG001 for a plug-in that cannot be used, PLG002 if an import fails, and PLG003 if a
    file differs from `plugins.code`.
    """
    if not plugins.is_used:
        return ()
    code = collect_plugin_code(plugins)
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
    sys.meta_path.insert(0, _PluginFinder(folders, digests))
    found = []
    for (kind, key, text), place in code.located:
        label = printable(text)
        loading = Plugin(kind, key, place.function, label, _placeholder_function, frozenset(digests))
        module: ModuleType = loading.call_guarded(import_module, place.module)
        _require_origin(module, place.file, label)
        function = loading.call_guarded(getattr, module, place.function)
        if not callable(function):
            raise loading.invalid_result_error(f"is {type(function).__name__}, not a function")
        found.append(replace(loading, function=function))
        log.info("%s: %s", key, label)
    require_known_files(folders, digests)
    return tuple(found)


def _placeholder_function() -> None:
    raise AssertionError("the plug-in's function is not loaded yet")


def load_plugins_of_kind(plugins: PluginsConfig, kind: PluginKind) -> tuple[Plugin, ...]:
    """Load the plug-ins of one kind. Raises like `load_plugins`."""
    return tuple(each for each in load_plugins(plugins) if each.kind is kind)


def _require_origin(module: ModuleType, file: Path, text: str) -> None:
    """Raise `ProjectError` if another module with this name is already imported."""
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
            raise ProjectError(RAISED, *_unknown_file_problem(file), str(file))


def _unknown_file_problem(file: Path) -> tuple[str, str]:
    message = (
        f"{file.name} is imported by a plug-in, but not by an import statement: it is not in plugins.code"
    )
    return message, f"import {file.stem} by an import statement, so that edits of {file.name} are noticed"


class _PluginFinder(MetaPathFinder):
    """Import finder for the plug-ins' folders, limited to files in `plugins.code`.

    Other files in these folders cannot be imported. The folders are not on `sys.path`, so a user's file
    cannot hide an installed module.
    """

    def __init__(self, folders: set[Path], digests: Mapping[str, str]) -> None:
        self._folders, self._digests = sorted(folders), digests

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return the spec of a module in `plugins.code`; None leaves the module to other finders.

        Raises ModuleNotFoundError for a file of the plug-ins' folders that is not in `plugins.code`.
        """
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
                if file.is_file() and (path is not None or _is_not_installed(self, fullname)):
                    raise ModuleNotFoundError(_unknown_file_problem(file)[0], name=fullname)
            if any(Path(each).is_relative_to(package) for each in self._digests):
                spec = ModuleSpec(fullname, None, is_package=True)
                spec.submodule_search_locations = [str(package)]
                return spec
        return None


def _is_not_installed(finder: MetaPathFinder, name: str) -> bool:
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return False
    others = (each for each in sys.meta_path if each is not finder)
    return all(each.find_spec(name, None, None) is None for each in others)


class _VerifiedLoader(SourceFileLoader):
    """Loader that compiles the source if it has the digest in the config, and never uses a cached `.pyc`."""

    def __init__(self, fullname: str, path: str, digest: str) -> None:
        super().__init__(fullname, path)
        self._digest = digest

    def get_code(self, fullname: str) -> Any:
        """Compile the source file. Raises `ImportError` if it was edited since it was read."""
        content = self.get_data(self.path)
        if hashlib.sha256(content).hexdigest() != self._digest:
            raise ImportError(f"{Path(self.path).name} was edited since the run was checked", name=fullname)
        return self.source_to_code(content, self.path)
