"""Escaping of untrusted text for a model card."""

from __future__ import annotations

import html
import re

from neobert.printable import printable

MAX_CHARACTERS = 300
# An underscore between letters or digits is plain text, as in LABEL_0.
_MARKUP = re.compile(r"([\\`*\[\]!|#~]|(?<![^\W_])_|_(?![^\W_]))")


def escape_markdown(text: object) -> str:
    """Return text on one line, with Markdown and HTML escaped, cut to `MAX_CHARACTERS` before escaping."""
    plain = " ".join(printable(str(text))[:MAX_CHARACTERS].split())
    return _MARKUP.sub(r"\\\1", html.escape(plain, quote=False))
