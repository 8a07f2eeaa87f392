"""Banned words: messages, help, docs, comments and docstrings are in plain technical English."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from tests.contracts import sources
from tests.contracts.sources import ROOT

PACKAGES = (*sources.PACKAGES, "neobert_launch")
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = [*sorted((ROOT / "examples").glob("*")), *sorted((ROOT / "profiles").rglob("*.yaml"))]
# "there is no GPU" is English; "it is no GPU" is not.
NO_LONGER = "longer|more|less|fewer|later|earlier|larger|smaller|different|way|need|one"
BANNED = re.compile(
    r"\b(?:lest|anew|mend(?:s|ed|ing)?|whoever|for want of|dear|dearer|begun again|begins? again"
    r"|not offered|data sets?|in spite of|heavy half|light half"
    r"|(?:is|are|was|were|be) told|goes by|(?:stands?|stood) still|made up|so many \w+ as|hears? of"
    rf"|(?<!there )(?:is|are|was|were) no (?!{NO_LONGER})\w+)\b",
    re.IGNORECASE,
)
COMMENT = re.compile(r"(?:^|\s)# .*")
QUESTION = re.compile(r"(?:What|Which|Whether|How|Where)\b")
# Comments and docstrings that still have to be rewritten, by file. Numbers may only fall.
REMAINING: dict[str, int] = {}


def test_no_message_has_a_banned_word():
    assert list(_findings("message")) == []


def test_no_document_has_a_banned_word():
    lines = [(path.name, line) for path in (*DOCS, *TEXTS) for line in path.read_text("utf-8").splitlines()]
    assert [f"{name}: {line}" for name, line in lines if BANNED.search(line)] == []


def test_comments_and_docstrings_improve():
    findings = [*_findings("comment"), *_findings("docstring"), *_findings("question")]
    found = Counter(finding.partition(":")[0] for finding in findings)
    worse = {path: number for path, number in found.items() if number > REMAINING.get(path, 0)}
    assert worse == {}, [finding for finding in findings if finding.partition(":")[0] in worse]


@pytest.mark.parametrize(
    "text", ["lest it runs", "Mend it.", "a file is no config", "so many rows as", "a data set"]
)
def test_the_pattern_matches(text):
    assert BANNED.search(text)


@pytest.mark.parametrize("text", ["there is no GPU", "it is no longer there", "the end", "recommended"])
def test_the_pattern_does_not_match_english(text):
    assert not BANNED.search(text)


def _findings(kind: str) -> Iterator[str]:
    for path, number, text_kind, text in _texts_of_code():
        pattern = QUESTION if kind == "question" else BANNED
        wanted = "docstring" if kind == "question" else kind
        if text_kind == wanted and (pattern.match(text) if kind == "question" else pattern.search(text)):
            yield f"{path}:{number}: {' '.join(text.split())[:100]}"


def _texts(name: str, nodes: list[ast.AST]) -> Iterator[tuple[str, int, str, str]]:
    """Yield (file, line, kind, text) of the messages, docstrings and comments of a file."""
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield name, node.lineno, "docstring" if id(node) in statements else "message", node.value
    for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1):
        if comment := COMMENT.search(line):
            yield name, number, "comment", comment[0]


@cache
def _texts_of_code() -> list[tuple[str, int, str, str]]:
    return [text for name, nodes in sources.nodes_of_packages(PACKAGES) for text in _texts(name, nodes)]
