"""Checks of function parameters and hook methods in plug-in source code."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from neobert.plugins.kinds import EVENTS, STATE
from neobert.plugins.reference import PluginProblemError

Function = ast.FunctionDef | ast.AsyncFunctionDef
MUTATORS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft",
    "remove", "setdefault", "sort", "update",
}  # fmt: skip
SAVED = "on_checkpoint"


def check_parameters(function: Function, wanted: Sequence[str], label: str) -> None:
    """Raise `PluginProblemError` if the function cannot be called with these positional arguments."""
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


def check_hook(hook: ast.ClassDef, file: str) -> None:
    """Raise `PluginProblemError` if a hook class has no hook method or one with wrong parameters."""
    label = f"{file}:{hook.lineno}: {hook.name}"
    methods = {each.name: each for each in hook.body if isinstance(each, ast.FunctionDef)}
    for name, parameters in {"__init__": (), **EVENTS, **STATE}.items():
        if name in methods and not methods[name].decorator_list:
            check_parameters(methods[name], ("self", *parameters), f"{label}.{name}")
    if hook.bases:
        return  # the test before the launch sees the methods of the class that it extends
    if not methods.keys() & EVENTS.keys():
        message = f"{label} has none of the methods {', '.join(EVENTS)}"
        raise PluginProblemError(message, "add one of these methods")
    if ("state_dict" in methods) != ("load_state_dict" in methods):
        lacking = next(name for name in ("state_dict", "load_state_dict") if name not in methods)
        message = f"{label} has only one of state_dict and load_state_dict"
        raise PluginProblemError(message, f"add the method {lacking}")
    require_saved_state(hook, file)


def require_saved_state(hook: ast.ClassDef, file: str, first_line: int = 1) -> None:
    """Raise `PluginProblemError` for a hook whose attributes would differ after a resume.

    `__init__` runs at the start of every session, so what it sets needs no checkpoint. `on_checkpoint` is
    called when a checkpoint is complete, at a step that depends on the disk.
    """
    methods = [each for each in hook.body if isinstance(each, ast.FunctionDef) and each.name != "__init__"]
    has_state = any(each.name in STATE for each in methods)
    for method in methods:
        if has_state and method.name != SAVED:
            continue
        for name, line in _changed_attributes(method):
            place = f"{file}:{line + first_line - 1}: {hook.name}.{method.name} changes {name}"
            if has_state:
                message = f"{place} when a checkpoint is complete, at a step that differs between two runs"
                raise PluginProblemError(message, f"change {name} in on_step or on_evaluation")
            message = f"{place}, which no checkpoint keeps: a resumed run would begin with its first value"
            raise PluginProblemError(
                message, f"add state_dict and load_state_dict to {hook.name}, and save {name} in them"
            )


def _changed_attributes(method: ast.FunctionDef) -> Iterator[tuple[str, int]]:
    """Yield attributes of `self` and global variables that a method assigns or changes in place."""
    for node in ast.walk(method):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Global):
            yield from ((name, node.lineno) for name in node.names)
        elif isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS
        ):
            targets = [node.func.value]
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if (name := _attribute_of_self(each)) is not None:
                    yield f"self.{name}", each.lineno


def _attribute_of_self(target: ast.expr) -> str | None:
    """Return the attribute of `self` in a target (`seen` for `self.seen[0].number`), else None."""
    name = None
    while isinstance(target, ast.Attribute | ast.Subscript):
        name = target.attr if isinstance(target, ast.Attribute) else name
        target = target.value
    return name if isinstance(target, ast.Name) and target.id == "self" else None
