"""Paragraphs of prose from HTML, POD and the service descriptions of botocore."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

LEAST_WORDS = 12
LEAST_LETTERS = 0.75
"""Share of the characters that are letters or spaces: less is code, a table or a list of names."""
BLOCKS = {
    "p",
    "li",
    "dd",
    "td",
    "blockquote",
    "div",
    "section",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "br",
    "dt",
}
SKIPPED = {"pre", "script", "style", "nav", "header", "footer", "head", "table"}
POD_CODE = re.compile(r"[A-Z](?:<<+ (.+?) >>+|<([^<>]*)>)")
"""Such as C<code> and C<< a -> b >>; of L<text|target> the text is kept."""


def paragraphs(name: str, content: bytes) -> Iterator[str]:
    """Yield the paragraphs of prose of a file."""
    if name.endswith(".json.gz"):
        found = (text for each in documentation(json.loads(gzip.decompress(content))) for text in html(each))
    elif name.endswith(".pod"):
        found = pod(content.decode("utf-8", "replace"))
    else:
        found = html(content.decode("utf-8", "replace"))
    return (text for each in found if is_prose(text := " ".join(each.split())))


def is_prose(text: str) -> bool:
    """Tell whether a paragraph has enough words, and is not mostly signs."""
    if len(text.split()) < LEAST_WORDS:
        return False
    return sum(each.isalpha() or each == " " for each in text) >= LEAST_LETTERS * len(text)


class Blocks(HTMLParser):
    """Collects the text of block elements, code blocks and navigation left out."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._text: list[str] = []
        self._skipped: list[str] = []

    def handle_starttag(self, tag: str, _attrs: Any) -> None:
        if tag in SKIPPED:
            self._skipped.append(tag)
        if tag in BLOCKS or tag in SKIPPED:
            self.end_block()

    def handle_endtag(self, tag: str) -> None:
        if tag in self._skipped:
            while self._skipped.pop() != tag:
                pass
        if tag in BLOCKS:
            self.end_block()

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self._text.append(data)

    def end_block(self) -> None:
        self.found.append("".join(self._text))
        self._text = []


def html(content: str) -> list[str]:
    parser = Blocks()
    parser.feed(content)
    parser.end_block()
    return parser.found


def pod(content: str) -> Iterator[str]:
    """Yield the ordinary paragraphs of Perl's documentation, its formatting codes resolved."""
    for block in re.split(r"\n\s*\n", content):
        if block[:1] not in {"", "=", " ", "\t"}:
            while (plain := POD_CODE.sub(plain_text, block)) != block:
                block = plain
            yield block


def plain_text(code: re.Match[str]) -> str:
    return (code[1] or code[2]).partition("|")[0]


def documentation(found: Any) -> Iterator[str]:
    """Yield all values of the key `documentation`."""
    if isinstance(found, dict):
        for name, value in found.items():
            if name == "documentation" and isinstance(value, str):
                yield value
            else:
                yield from documentation(value)
    elif isinstance(found, list):
        for each in found:
            yield from documentation(each)
