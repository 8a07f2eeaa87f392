"""Paragraphs of prose from HTML, POD, descriptions in JSON and dictionaries."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator
from html import unescape
from html.parser import HTMLParser
from typing import Any

MIN_WORDS = 12
MIN_LETTERS = 0.75
"""Minimum share of letters and spaces in prose; code, tables and lists of names have less."""
BLOCKS = {"p", "li", "dd", "td", "blockquote", "div", "section", "br", "dt"}
HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
"""Skipped, because long headings are signatures of functions."""
SKIPPED = {"pre", "script", "style", "nav", "header", "footer", "head", "table", *HEADINGS}
DESCRIPTIONS = {"documentation", "description"}
"""Keys of the JSON values that are prose."""
POD_CODE = re.compile(r"[A-Z](?:<<+ (.+?) >>+|<([^<>]*)>)")
"""Formatting codes such as C<code> and C<< a -> b >>; L<text|target> becomes its text."""
POD_ESCAPE, HELD_ESCAPE = re.compile(r"E<(\w+)>"), re.compile(r"\0(\w+)\0")
"""Names of characters, the same as in HTML, which are replaced after the formatting codes."""
POD_NO_TEXT = ("=cut", "=begin")
"""Commands after which no text comes until the next command."""
DICT_NOTE = re.compile(r"\[[^\[\]]*\]|<[a-z ,-]+>|[{}]")
"""Notes such as [L. coagulatio], <computing> and the braces of {cross references}."""
DICT_HEADWORD = re.compile(r"^\S.*", re.MULTILINE)


def paragraphs(name: str, content: bytes) -> Iterator[str]:
    if name.endswith((".gz", ".dz")):
        name, content = name[:-3], gzip.decompress(content)
    text = content.decode("utf-8", "replace")
    found = PARSERS[name.rpartition(".")[2]](text)
    return (joined for each in found if is_prose(joined := " ".join(each.split())))


def is_prose(text: str) -> bool:
    """Return whether a paragraph has enough words and is not mostly symbols."""
    if len(text.split()) < MIN_WORDS:
        return False
    return sum(each.isalpha() or each == " " for each in text) >= MIN_LETTERS * len(text)


class HtmlBlockParser(HTMLParser):
    """Collector of block-element text, without code blocks and navigation."""

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


def html_paragraphs(content: str) -> list[str]:
    parser = HtmlBlockParser()
    parser.feed(content)
    parser.end_block()
    return parser.found


def pod_paragraphs(content: str) -> Iterator[str]:
    """Yield the ordinary paragraphs of Perl's documentation, with its formatting codes resolved."""
    is_text = True
    for block in re.split(r"\n\s*\n", content):
        if block.startswith("="):
            is_text = not block.startswith(POD_NO_TEXT)
        elif is_text and block[:1] not in {"", " ", "\t"}:
            yield strip_pod_codes(block)


def strip_pod_codes(block: str) -> str:
    resolved = replace_innermost_first(POD_CODE, code_content, POD_ESCAPE.sub(r"\0\1\0", block))
    return HELD_ESCAPE.sub(escaped_character, resolved)


def replace_innermost_first(pattern: re.Pattern[str], kept: Callable[[re.Match[str]], str], text: str) -> str:
    """Replace matches repeatedly, innermost first, until none is left."""
    count = 1
    while count:
        text, count = pattern.subn(kept, text)
    return text


def code_content(code: re.Match[str]) -> str:
    return (code[1] or code[2]).partition("|")[0]


def escaped_character(escape: re.Match[str]) -> str:
    return unescape(f"&{'#' * escape[1].isdigit()}{escape[1]};")


def json_descriptions(content: str) -> Iterator[str]:
    """Yield the paragraphs in JSON values of the keys `DESCRIPTIONS`, which may contain HTML."""
    for each in json_strings(json.loads(content)):
        yield from html_paragraphs(each)


def json_strings(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name in DESCRIPTIONS and isinstance(value, str):
                yield value
            else:
                yield from json_strings(value)
    elif isinstance(node, list):
        for each in node:
            yield from json_strings(each)


def dictionary_entries(content: str) -> list[str]:
    """Return the entries of a `dictd` file, where only headwords start in column 1."""
    return DICT_HEADWORD.split(replace_innermost_first(DICT_NOTE, lambda _: "", content))


PARSERS: dict[str, Callable[[str], Iterable[str]]] = {
    "html": html_paragraphs,
    "pod": pod_paragraphs,
    "json": json_descriptions,
    "dict": dictionary_entries,
}
"""Parsers by the suffix of a file's name, ignoring compression."""
