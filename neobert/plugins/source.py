"""Source of plug-ins, read without running it: functions, their parameters, and what a file imports."""

from __future__ import annotations

import ast
import os.path
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from neobert.plugins.kinds import PluginKind
from neobert.plugins.parameters import Function, check_hook, check_parameters
from neobert.plugins.reference import PluginLocation, PluginProblemError

MAX_BYTES = 1 << 20
ENVIRONMENTS = {"site-packages", "dist-packages"}


def read_source(file: Path) -> tuple[bytes, ast.Module]:
    """Return the content and syntax tree of a file. Raises `PluginProblemError` if it cannot be parsed."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise PluginProblemError(f"{str(file)!r} is larger than 1 MiB", "split the file")
        return content, ast.parse(content, str(file))
    except OSError as error:
        message = f"{str(file)!r} cannot be read: {error.strerror}"
        raise PluginProblemError(message, "fix the permissions of the file") from None
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 1
        message = f"{str(file)!r}, line {line}: {getattr(error, 'msg', error)}"
        raise PluginProblemError(message, "fix the syntax of the file") from None


def check_function(place: PluginLocation, kind: PluginKind, tree: ast.Module) -> None:
    """Raise `PluginProblemError` if the function does not exist or takes other arguments.

    A name that the module imports or assigns, and a decorated function, are accepted: the test before the
    launch calls them.
    """
    found = next((each for each in tree.body if getattr(each, "name", None) == place.function), None)
    where = str(place.file)
    if isinstance(found, Function) and found.decorator_list:
        return
    if isinstance(found, Function):
        check_parameters(found, kind.parameters, f"{where}:{found.lineno}: {found.name}")
    elif isinstance(found, ast.ClassDef) and kind.makes_object:
        check_hook(found, where)
    elif isinstance(found, ast.ClassDef):
        called_with = f"({', '.join(kind.parameters)})"
        message = f"{where}:{found.lineno}: {found.name} is a class, not a function of {called_with}"
        raise PluginProblemError(message, f"write a function of {called_with}")
    elif place.function not in set(_bound_names(tree)):
        names = [each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
        message = f"{where!r} defines no {place.function!r}"
        raise PluginProblemError(message, f"name one of its functions ({', '.join(names) or 'none'})")


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds, including those inside `if` and `try`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (each.asname or each.name for each in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, Function | ast.ClassDef):
            yield node.name


def imported_files(place: PluginLocation) -> dict[str, bytes]:
    """Return the content of the module's file, and of the files of the user's folder that it imports.

    Includes indirect imports. Keys are paths relative to the folder, with `/`. Raises `PluginProblemError`
    for a file that cannot be parsed, or that an installed module of the same name hides.
    """
    assert place.folder is not None
    found: dict[str, bytes] = {}
    waiting = [place.file]
    while waiting:
        file = waiting.pop()
        name = file.relative_to(place.folder).as_posix()
        if name in found:
            continue
        content, tree = read_source(file)
        found[name] = content
        for module in _imported_names(tree, file, place.folder):
            waiting += files_for_import(place.folder, module)
        waiting += files_for_import(place.folder, list(file.relative_to(place.folder).with_suffix("").parts))
    for name in found:
        _require_visible_module(place.folder, name)
    return found


def _imported_names(tree: ast.Module, file: Path, folder: Path) -> Iterator[list[str]]:
    """Yield the dotted names that a file may import, as lists of parts."""
    package = list(file.parent.relative_to(folder).parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.split(".") for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = base + (node.module.split(".") if node.module else [])
            yield from ([*module, each.name] for each in node.names)


def files_for_import(folder: Path, parts: Sequence[str]) -> list[Path]:
    """Return the files in a folder that importing a dotted name reads: its packages and the module."""
    files = []
    for length in range(1, len(parts) + 1):
        base = folder.joinpath(*parts[:length])
        candidates = (base / "__init__.py", base.with_name(f"{base.name}.py"))
        files += [each for each in candidates if each.is_file()][:1]
    return files


def _require_visible_module(folder: Path, name: str) -> None:
    """Raise `PluginProblemError` if an installed module hides a file with the same name."""
    top = name.partition("/")[0].removesuffix(".py")
    origin = installed_file(top)
    if origin is not None and (is_installed(Path(origin)) or not _is_below(origin, folder)):
        message = f"{str(folder / name)!r} is hidden by the installed module {top}"
        raise PluginProblemError(message, f"rename {name.partition('/')[0]}, and update its imports")


def installed_file(top: str) -> str | None:
    """Return the file, or `built-in`, of an installed top-level module; None if there is none."""
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    return spec.origin or next(iter(spec.submodule_search_locations or ()), "built-in")


def is_installed(file: Path) -> bool:
    """Return whether a file belongs to a Python environment or to this project."""
    roots = (sys.base_prefix, Path(__file__).resolve().parents[2])
    return not ENVIRONMENTS.isdisjoint(file.parts) or any(file.is_relative_to(root) for root in roots)


def _is_below(file: str, folder: Path) -> bool:
    return os.path.isabs(file) and Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder))
