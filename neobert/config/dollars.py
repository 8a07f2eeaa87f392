"""Values that look like variables and are none: of the shell, or a misspelt `$variables.name`.

Nothing replaces them, so a path with one would be a folder called `$HOME`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from neobert.config.tree import Flaw, Node, Path, find, join, walk

TABLE = "variables"
LOOKALIKE = re.compile(r"(?:^|/)\{?\$\{?([A-Za-z_]\w*)")
MISSPELT = ("variable", "variables", "var", "vars")
FREE_TEXT = ("waivers", "dataset.text_column")
"""A reason is prose, and a column of text made from XML is called `$text` at times."""


def lookalikes(root: Node) -> Iterator[Flaw]:
    """Yield what a reader takes for a variable, once the variables have been replaced."""
    for path, node in walk(root):
        if isinstance(node.value, str) and not _is_free(path):
            for name in LOOKALIKE.findall(node.value):
                message = f"${name} is no variable, and {node.value!r} would be taken as it stands"
                yield Flaw("CFG012", path, message, _hint(name, root), node.origin)


def _is_free(path: Path) -> bool:
    return path[0] == TABLE or path[0] in FREE_TEXT or join(path) in FREE_TEXT


def _hint(name: str, root: Node) -> str:
    if name.lower() in MISSPELT:
        return "a whole value is $variables.name; inside text it is {$variables.name}"
    if find(root, (TABLE, name)):
        return f"did you mean $variables.{name}?"
    return "the shell's variables are not read here: write the value, or give it as an argument"
