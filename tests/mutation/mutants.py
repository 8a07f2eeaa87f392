"""Small edits of a module's syntax tree, each of which turns a judgement into another one."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPPOSITES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
WEIGHTS = {"FAIL": "WARN", "WARN": "FAIL"}
SHARE = 0.01
# What people read, and what only types read, judges nothing.
SKIPPED_FIELDS = {"annotation", "returns", "slice", "format_spec", "type_params"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, eq=False)
class Mutant:
    """One edit. `first` to `last` are the lines of its statement; `function` is empty outside of one."""

    file: Path
    function: str
    line: int
    first: int
    last: int
    before: str
    after: str
    tree: ast.Module
    apply: Callable[[], None]

    @property
    def name(self) -> tuple[str, ...]:
        """What the edit is called where no line number will do."""
        first_line = self.file.read_text(encoding="utf-8").splitlines()[self.first - 1 : self.first]
        return self.file.as_posix(), self.function, "".join(first_line).strip(), self.before, self.after


def parse(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))


def mutants_of(file: Path) -> list[Mutant]:
    """Every edit of a file, in the order of the lines."""
    tree = parse(file)
    found = _below(file, tree, tree, "", (0, 0))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.before, mutant.after))


def _below(
    file: Path, tree: ast.Module, node: ast.AST, function: str, lines: tuple[int, int]
) -> Iterator[Mutant]:
    if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom)) or _is_for_types(node):
        return
    if isinstance(node, ast.stmt):
        lines = _header(node)
    inside = (
        f"{function}.{node.name}".lstrip(".") if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else function
    )
    for parent, field, index, child in _children(node):
        within = function if field == "decorator_list" else inside
        for new in _edits(node, field, child):
            yield Mutant(
                file,
                within,
                child.lineno,
                *(_header(child) if isinstance(child, ast.stmt) else lines),
                ast.unparse(child),
                ast.unparse(new),
                tree,
                _putting(parent, field, index, new),
            )
        yield from _below(file, tree, child, within, lines)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _header(node: ast.stmt) -> tuple[int, int]:
    """The lines of a statement, without the statements below it."""
    body = getattr(node, "body", None)
    last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
    return node.lineno, max(node.lineno, last)


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, Any]]:
    for field, value in ast.iter_fields(node):
        if field in SKIPPED_FIELDS or (isinstance(node, ast.ClassDef) and field == "decorator_list"):
            continue
        if isinstance(value, list):
            yield from ((node, field, index, item) for index, item in enumerate(value) if _is_node(item))
        elif _is_node(value):
            yield node, field, None, value


def _is_node(value: object) -> bool:
    return isinstance(value, ast.AST)


def _putting(parent: ast.AST, field: str, index: int | None, new: ast.AST) -> Callable[[], None]:
    def put() -> None:
        if index is None:
            setattr(parent, field, new)
        else:
            getattr(parent, field)[index] = new

    return put


def _edits(parent: ast.AST, field: str, node: Any) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        yield from _flips(node)
    elif isinstance(node, ast.BoolOp):
        new = copy.deepcopy(node)
        new.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield new
    elif isinstance(node, ast.Constant) and not isinstance(parent, ast.Expr):
        yield from _constants(node)
    elif isinstance(node, ast.Name) and isinstance(parent, ast.Call) and node.id in SWAPPED:
        yield ast.copy_location(ast.Name(SWAPPED[node.id], node.ctx), node)
    elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Severity" and node.attr in WEIGHTS:
        yield ast.copy_location(ast.Attribute(node.value, WEIGHTS[node.attr], node.ctx), node)
    elif _yields(node):
        nothing = ast.Expr(ast.YieldFrom(ast.Tuple([], ast.Load())))
        yield ast.fix_missing_locations(ast.copy_location(nothing, node))
    if _is_condition(parent, field):
        yield from _negation(node)


def _yields(node: ast.AST) -> bool:
    is_one = isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield | ast.YieldFrom)
    return is_one and ast.unparse(node) != "yield from ()"


def _is_condition(parent: ast.AST, field: str) -> bool:
    has_test = isinstance(parent, ast.If | ast.IfExp | ast.While | ast.Assert)
    return (has_test and field == "test") or (isinstance(parent, ast.comprehension) and field == "ifs")


def _negation(node: ast.expr) -> Iterator[ast.AST]:
    """A single comparison for equality, identity or membership is negated by its flip already."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], OPPOSITES):
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield copy.deepcopy(node.operand)
    else:
        new = ast.UnaryOp(ast.Not(), copy.deepcopy(node))
        yield ast.fix_missing_locations(ast.copy_location(new, node))


def _flips(node: ast.Compare) -> Iterator[ast.AST]:
    for index, operator in enumerate(node.ops):
        new = copy.deepcopy(node)
        new.ops[index] = FLIPPED[type(operator)]()
        yield new


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        changed: list[Any] = [not value]
    elif isinstance(value, int):
        changed = [value + 1, value - 1]
    elif isinstance(value, float):
        changed = [value * (1 + SHARE), value * (1 - SHARE)] if value else [SHARE, -SHARE]
    else:
        return
    for new in changed:
        yield ast.copy_location(ast.Constant(new), node)
