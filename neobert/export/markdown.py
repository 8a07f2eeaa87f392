"""Text from outside in a model card."""

from __future__ import annotations

import html
import re

from neobert.printable import printable

MOST_CHARACTERS = 300
# An underscore between letters or digits is plain text, as in LABEL_0.
_MARKUP = re.compile(r"([\\`*\[\]!|#~]|(?<![^\W_])_|_(?![^\W_]))")


def escaped(text: object) -> str:
    """Return text that Markdown and HTML show as it is, on one line."""
    plain = " ".join(printable(str(text))[:MOST_CHARACTERS].split())
    return _MARKUP.sub(r"\\\1", html.escape(plain, quote=False))
