"""Variables: values named once under `variables:`.

`$variables.a.b` and `${variables.a.b}` as a whole value keep its type; `{$variables.a}` and `${variables.a}`
are used inside text.
Shell variables and misspelled references are not replaced but rejected: they would create a folder named
`$HOME`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from neobert.config.nodes import (
    BRANCHES,
    MAX_DEPTH,
    MAX_VALUES,
    Flaw,
    Node,
    Path,
    children,
    find,
    join,
    size_and_depth,
    walk,
)

NAME = r"[\w-]+(?:\.[\w-]+)*"
EXACT = re.compile(rf"\$variables\.({NAME})|\$\{{variables\.({NAME})\}}")
INLINE = re.compile(rf"\{{\$variables\.({NAME})\}}|\$\{{variables\.({NAME})\}}")
REMAINDER = re.compile(r"\$\{?variables\b")
REFERENCE = re.compile(rf"\$\{{?variables\.({NAME})")
VARIABLES = "variables."
MAX_TEXT = 2**20
MAX_COMPARED = 10_000
LOOKALIKE = re.compile(r"(?:^|/)\{?\$\{?([A-Za-z_]\w*)")
FREE_TEXT = ("waivers", "dataset.text_column")
"""Keys whose text may contain `$name`: reasons in prose, and columns converted from XML, such as `$text`."""


class _UnresolvedError(Exception):
    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


References = Mapping[str, tuple[str, ...]]


def substitute(root: Node, references: References) -> tuple[Node, list[Flaw]]:
    """Replace the references. An unresolvable reference becomes null and is reported as an error."""
    flaws = _invalid_name_flaws(root)
    if not references:
        return root, flaws
    resolved = _Resolver(root, flaws).resolve_node(root, ())
    size, depth = size_and_depth(resolved, {})
    if size > MAX_VALUES or depth > MAX_DEPTH:
        message = f"variables expand to {size} values on {depth} levels"
        return root, [Flaw("CFG012", ("variables",), message, "nest fewer variables", root.origin)]
    return resolved, flaws


def references_in(root: Node) -> References:
    """Return the variables in the value of each dotted key, before substitution."""
    named = ((path, node) for path, node in _texts_with_dollar(root) if _is_reference(node))
    return {join(path): tuple(REFERENCE.findall(str(node.value))) for path, node in named}


def _texts_with_dollar(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    for name, child in children(node):
        if isinstance(child.value, BRANCHES):
            yield from _texts_with_dollar(child, (*path, name))
        elif isinstance(child.value, str) and "$" in child.value:
            yield (*path, name), child


def keys_using_variable(name: str, references: References) -> tuple[str, ...]:
    """Return the sorted keys that use a variable (any variable if `name` is empty), also indirectly."""
    reached: set[str] = set()
    changed = [name]
    while changed:
        variable = changed.pop()
        users = {key for key, names in references.items() if any(_overlaps(variable, each) for each in names)}
        changed += [key.removeprefix(VARIABLES) for key in users - reached if key.startswith(VARIABLES)]
        reached |= users
    return tuple(sorted(key for key in reached if not key.startswith(VARIABLES)))


def _overlaps(name: str, other: str) -> bool:
    """Return whether one of two variables is or contains the other; true if `name` is empty."""
    return not name or f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}.")


def _is_reference(node: Node) -> bool:
    return isinstance(node.value, str) and REMAINDER.search(node.value) is not None


def _invalid_name_flaws(root: Node) -> list[Flaw]:
    table = find(root, ("variables",))
    if table is None:
        return []
    return [
        Flaw(
            "CFG012",
            ("variables", *path),
            f"{path[-1]!r} is not a valid name",
            "use letters, digits, _ and -",
            node.key,
        )
        for path, node in walk(table)
        if isinstance(path[-1], str) and not re.fullmatch(r"[\w-]+", path[-1])
    ]


class _Resolver:
    def __init__(self, root: Node, flaws: list[Flaw]) -> None:
        self.root = root
        self.flaws = flaws
        self.known: dict[str, Node] = {}
        self.num_characters = 0

    def resolve_node(self, node: Node, path: Path) -> Node:
        """Return the node with its references replaced; an unresolvable reference is recorded as a flaw."""
        if isinstance(node.value, dict):
            entries = {name: self.resolve_node(child, (*path, name)) for name, child in node.value.items()}
            return Node(entries, node.origin, node.key)
        if isinstance(node.value, tuple):
            items = (self.resolve_node(child, (*path, index)) for index, child in enumerate(node.value))
            return Node(tuple(items), node.origin, node.key)
        if not _is_reference(node):
            return node
        try:
            return Node(self.expand(node, ()).value, node.origin, node.key)
        except _UnresolvedError as error:
            self.flaws.append(Flaw("CFG012", path, error.message, error.hint, node.origin))
            return Node(None, node.origin, node.key)

    def expand(self, node: Node, stack: tuple[str, ...]) -> Node:
        """Return the node with all references replaced, also in variables. Raises `_UnresolvedError`."""
        if isinstance(node.value, dict):
            entries = {name: self.expand(child, stack) for name, child in node.value.items()}
            return Node(entries, node.origin, node.key)
        if isinstance(node.value, tuple):
            return Node(tuple(self.expand(child, stack) for child in node.value), node.origin, node.key)
        if not _is_reference(node):
            return node
        text = str(node.value)
        if exact := EXACT.fullmatch(text):
            return self.lookup(exact[1] or exact[2], stack)
        text = INLINE.sub(lambda match: self.value_text(match[1] or match[2], stack), text)
        self.num_characters += len(text)
        if self.num_characters > MAX_TEXT:
            raise _UnresolvedError(
                f"variables expand to more than {MAX_TEXT} characters", "shorten the values under variables:"
            )
        if REMAINDER.search(text):
            hint = "write $variables.name for a whole value, {$variables.name} inside text"
            raise _UnresolvedError(f"{text!r} contains an unresolved reference", hint)
        return Node(text, node.origin, node.key)

    def lookup(self, name: str, stack: tuple[str, ...]) -> Node:
        if name in stack:
            members = stack[stack.index(name) :]
            first = members.index(min(members))
            circle = " -> ".join([*members[first:], *members[:first], members[first]])
            raise _UnresolvedError(
                f"variables refer to each other in a cycle: {circle}", "set one of the variables to a value"
            )
        if len(stack) >= MAX_DEPTH:
            raise _UnresolvedError(f"variables are nested deeper than {MAX_DEPTH} levels", "use fewer levels")
        if name not in self.known:
            self.known[name] = self.expand(self.definition(name, (*stack, name)), (*stack, name))
        return self.known[name]

    def definition(self, name: str, stack: tuple[str, ...]) -> Node:
        """Return the unexpanded value of a variable. Raises `_UnresolvedError` if it is not defined.

        The variable that contains it may itself be a reference.
        """
        found = find(self.root, ("variables", *name.split(".")))
        parent, _, last = name.rpartition(".")
        if found is None and parent and find(self.root, ("variables", parent.split(".")[0])):
            found = find(self.lookup(parent, stack), (last,))
        if found is None:
            raise _UnresolvedError(f"variable {name} is not defined", self.hint_for(name))
        return found

    def value_text(self, name: str, stack: tuple[str, ...]) -> str:
        value = self.lookup(name, stack).value
        if isinstance(value, dict | tuple):
            raise _UnresolvedError(
                f"{name} is not a single value and cannot be part of a text", "use one of its items"
            )
        if value is None or isinstance(value, bool):
            return {None: "null", True: "true", False: "false"}[value]
        return str(value)

    def hint_for(self, name: str) -> str:
        from neobert.config.key_suggestions import closest_name

        table = find(self.root, ("variables",))
        names = [join(path) for path, _ in walk(table)] if table else []
        near = closest_name(name, names) if len(names) * len(self.flaws) < MAX_COMPARED else ""
        return f"did you mean {near}?" if near else "define the variable under variables:"


def unresolved_reference_flaws(root: Node) -> Iterator[Flaw]:
    """Yield an error for each text that still looks like a variable reference after substitution."""
    for path, node in _texts_with_dollar(root):
        if not _may_contain_dollar(path):
            for name in LOOKALIKE.findall(str(node.value)):
                message = f"${name} is not a variable, and {node.value!r} would be used literally"
                yield Flaw("CFG012", path, message, _hint_for_lookalike(name, root), node.origin)


def _may_contain_dollar(path: Path) -> bool:
    return path[0] == "variables" or path[0] in FREE_TEXT or join(path) in FREE_TEXT


def _hint_for_lookalike(name: str, root: Node) -> str:
    if find(root, ("variables", name)):
        return f"did you mean $variables.{name}?"
    return (
        "write the value, or define it under variables: and write $variables.name ({$variables.name} in text)"
    )
