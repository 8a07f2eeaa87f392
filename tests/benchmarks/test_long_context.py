"""Text that states words twice, and the benchmark of longer rows on it."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

import long_context
import pytest
from hypothesis import settings
from stated_twice import LONG, SHORT, WORDS_OF_STATEMENT, document, read, write_text

STATED = re.compile(r"(The \w+ \w+ are) (\w+ \w+ \w+)\.")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    draw, folder = random.Random(0), tmp_path / "data"
    folder.mkdir()
    words = ["".join(draw.choices("abdegklmnorstu", k=draw.randint(3, 8))) for _ in range(400)]
    sentences = [" ".join(draw.choices(words, k=draw.randint(5, 20))).capitalize() for _ in range(600)]
    with gzip.open(folder / "novel.txt.gz", "wt", encoding="utf-8") as file:
        file.write(". ".join(sentences))
    return folder


@pytest.mark.parametrize("kind", [SHORT, LONG])
def test_each_statement_is_made_twice_in_a_document_of_its_size(data: Path, kind: tuple[int, int]) -> None:
    corpus, draw = read(data), random.Random(0)
    texts = [document(draw, corpus, kind) for _ in range(60)]
    found = [Counter(STATED.findall(text)) for text in texts]
    assert {count for each in found for count in each.values()} == {2}
    assert 0.1 < sum(not each for each in found) / len(found) < 0.5  # natural text
    keys = {word for each in found for _, key in each for word in key.split()}
    assert keys <= set(corpus.words)
    assert all(kind[0] - 2 * WORDS_OF_STATEMENT <= len(text.split()) <= kind[1] + 30 for text in texts)


def test_the_text_depends_on_the_kind_and_the_number_alone(data: Path, tmp_path: Path) -> None:
    first, again, other = (tmp_path / name for name in ("a", "b", "c"))
    for file, kind in ((first, SHORT), (again, SHORT), (other, LONG)):
        write_text(data, file, kind, 5)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    assert len(first.read_text(encoding="utf-8").splitlines()) == 5


@pytest.mark.skipif(
    settings.get_current_profile_name() != "thorough", reason="four commands: make test-thorough"
)
def test_a_tiny_model_is_continued_and_tested(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["long_context", str(data), str(tmp_path / "work"), "--tiny", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    long_context.main()
    detail = json.loads((tmp_path / "long-context.json").read_text(encoding="utf-8"))["detail"]
    parent, continued = detail["parent"], detail["continued"]
    assert set(parent["accuracy"]) == set(continued["accuracy"]) == {"128", "1024"}
    before, after = (each["evaluations"] for each in (parent, continued))
    assert after[0]["eval/source_loss"] == pytest.approx(before[-1]["eval/loss"], rel=0.017)
