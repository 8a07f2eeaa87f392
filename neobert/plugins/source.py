"""Source of plug-ins, read without running it: functions, their parameters, and what a file imports."""

from __future__ import annotations

import ast
import os.path
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from neobert.plugins.kinds import EVENTS, STATE, Kind
from neobert.plugins.reference import Place, PluginProblemError

Function = ast.FunctionDef | ast.AsyncFunctionDef
MOST_BYTES = 1 << 20
ENVIRONMENTS = {"site-packages", "dist-packages"}
MUTATORS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft",
    "remove", "setdefault", "sort", "update",
}  # fmt: skip


def read_source(file: Path) -> tuple[bytes, ast.Module]:
    """Return content and syntax tree of a file. Raises `PluginProblemError` if it cannot be parsed."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise PluginProblemError(f"{str(file)!r} is larger than 1 MiB", "split the file")
        return content, ast.parse(content, str(file))
    except OSError as error:
        message = f"{str(file)!r} cannot be read: {error.strerror}"
        raise PluginProblemError(message, "fix the permissions of the file") from None
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 1
        message = f"{str(file)!r}, line {line}: {getattr(error, 'msg', error)}"
        raise PluginProblemError(message, "fix the syntax of the file") from None


def check_function(place: Place, kind: Kind, tree: ast.Module) -> None:
    """Raise `PluginProblemError` if the function does not exist or takes other arguments.

    A name that the module imports or assigns is accepted: the test before the launch calls it.
    """
    found = next((each for each in tree.body if getattr(each, "name", None) == place.function), None)
    where = str(place.file)
    if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
        _check_parameters(found, kind.parameters, f"{where}:{found.lineno}: {found.name}")
    elif isinstance(found, ast.ClassDef):
        _check_class(found, kind, place)
    elif place.function not in set(_bound_names(tree)):
        names = [each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
        message = f"{where!r} defines no {place.function!r}"
        raise PluginProblemError(message, f"write one of its names ({', '.join(names) or 'it has none'})")


def _check_class(found: ast.ClassDef, kind: Kind, place: Place) -> None:
    label = f"{place.file}:{found.lineno}: {found.name}"
    if not kind.makes_object:
        message = f"{label} is a class, not a function of ({', '.join(kind.parameters)})"
        raise PluginProblemError(message, f"write a function of ({', '.join(kind.parameters)})")
    methods = {each.name: each for each in found.body if isinstance(each, ast.FunctionDef)}
    for name, parameters in {"__init__": (), **EVENTS, **STATE}.items():
        if name in methods:
            _check_parameters(methods[name], ("self", *parameters), f"{label}.{name}")
    if not found.bases and not methods.keys() & EVENTS.keys():
        message = f"{label} has none of the methods {', '.join(EVENTS)}"
        raise PluginProblemError(message, "add one of these methods")
    if ("state_dict" in methods) != ("load_state_dict" in methods) and not found.bases:
        message = f"{label} has only one of state_dict and load_state_dict"
        raise PluginProblemError(message, "add the other method")
    if not found.bases:
        refuse_unsaved(found, str(place.file))


def refuse_unsaved(found: ast.ClassDef, file: str, first_line: int = 1) -> None:
    """Raise `PluginProblemError` for a hook that changes its attributes and has no state."""
    if (changed := unsaved_attribute(found)) is not None:
        attribute, method, line = changed
        message = (
            f"{file}:{line + first_line - 1}: {found.name}.{method} changes self.{attribute}, which no "
            "checkpoint keeps: a resumed run would begin with the value of __init__"
        )
        hint = f"add state_dict and load_state_dict to {found.name}, with {attribute}"
        raise PluginProblemError(message, hint)


def unsaved_attribute(found: ast.ClassDef) -> tuple[str, str, int] | None:
    """Return the first attribute that a method changes, the method and the line; None with a state.

    `__init__` runs at the start of every session, so what it sets needs no checkpoint.
    """
    methods = [each for each in found.body if isinstance(each, ast.FunctionDef)]
    if any(each.name in STATE for each in methods):
        return None
    for method in methods:
        for node in ast.walk(method) if method.name != "__init__" else ():
            if (name := _changed_attribute(node)) is not None:
                return name, method.name, node.lineno  # type: ignore[attr-defined]
    return None


def _changed_attribute(node: ast.AST) -> str | None:
    """Return the attribute of `self` that a statement changes: assigned, or changed in place."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        targets = [node.func.value]
        if not isinstance(node.func.value, ast.Attribute | ast.Subscript):
            return None
    for target in targets:
        for inner in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            while isinstance(inner, ast.Subscript):
                inner = inner.value
            if (
                isinstance(inner, ast.Attribute)
                and isinstance(inner.value, ast.Name)
                and inner.value.id == "self"
            ):
                return inner.attr
    return None


def _check_parameters(function: Function, wanted: Sequence[str], label: str) -> None:
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    least, most = len(names) - len(arguments.defaults), len(names)
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required = [each.arg for each, default in keywords if default is None]
    hint = f"write def {function.name}({', '.join(wanted)})"
    if isinstance(function, ast.AsyncFunctionDef):
        raise PluginProblemError(f"{label} is a coroutine", hint)
    fits = least <= len(wanted) and (len(wanted) <= most or arguments.vararg is not None)
    if not fits or required:
        taken = ", ".join([*names, *required])
        raise PluginProblemError(f"{label} takes ({taken}), but is called with ({', '.join(wanted)})", hint)


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds, also inside `if` and `try`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (each.asname or each.name for each in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, Function | ast.ClassDef):
            yield node.name


def imported_files(place: Place) -> dict[str, tuple[Path, bytes]]:
    """Return the module's file and the files of the user's folder that it imports, directly or indirectly.

    Keys are paths relative to the folder, with `/`. Raises `PluginProblemError` for a file that cannot be
    parsed, or that an installed module of the same name hides.
    """
    assert place.folder is not None
    found: dict[str, tuple[Path, bytes]] = {}
    waiting = [place.file]
    while waiting:
        file = waiting.pop()
        name = file.relative_to(place.folder).as_posix()
        if name in found:
            continue
        content, tree = read_source(file)
        found[name] = (file, content)
        for module in _imports_of(tree, file, place.folder):
            waiting += files_of_import(place.folder, module)
        waiting += files_of_import(place.folder, list(file.relative_to(place.folder).with_suffix("").parts))
    for name in found:
        _refuse_hidden(place.folder, name)
    return found


def _imports_of(tree: ast.Module, file: Path, folder: Path) -> Iterator[list[str]]:
    """Yield the dotted names that a file may import, as lists of parts."""
    package = list(file.parent.relative_to(folder).parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.split(".") for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = base + (node.module.split(".") if node.module else [])
            yield from ([*module, each.name] for each in node.names)


def files_of_import(folder: Path, parts: Sequence[str]) -> list[Path]:
    """Return the files of a folder that the import of a dotted name reads: its packages, and the module."""
    files = []
    for length in range(1, len(parts) + 1):
        base = folder.joinpath(*parts[:length])
        candidates = (base / "__init__.py", base.with_name(f"{base.name}.py"))
        files += [each for each in candidates if each.is_file()][:1]
    return files


def _refuse_hidden(folder: Path, name: str) -> None:
    """Raise `PluginProblemError` if Python would import an installed module in place of a file's."""
    top = name.partition("/")[0].removesuffix(".py")
    origin = installed_file(top)
    if origin is not None and (is_installed(Path(origin)) or not _is_below(origin, folder)):
        message = f"{str(folder / name)!r} is hidden by the installed module {top}"
        raise PluginProblemError(message, f"rename {name.partition('/')[0]}, and the imports of it")


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
    """Return whether a file belongs to an environment or to this project, which may be below the folder."""
    roots = (sys.base_prefix, Path(__file__).resolve().parents[2])
    return not ENVIRONMENTS.isdisjoint(file.parts) or any(file.is_relative_to(root) for root in roots)


def _is_below(file: str, folder: Path) -> bool:
    return os.path.isabs(file) and Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder))
