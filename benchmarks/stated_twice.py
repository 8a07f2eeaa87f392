"""Text in which words are stated twice, so that a model learns to copy them over the length of a document.

A document is natural text, natural text with statements such as "The lost names are A B C." at two places
each, the statements alone, or a few sentences that repeat, with statements. The filler of `evaluate
passkey` is not in it; its prefix is one of 576.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ADJECTIVES = (
    "secret lost hidden old new first last true false dear small great red blue green dark bright cold warm "
    "quiet loud common strange second"
)
NOUNS = (
    "words names signs marks things terms titles labels items answers notes clues tokens symbols keys gifts "
    "pieces places colours parts guests letters orders wishes"
)
PREFIXES = [f"The {each} {noun} are" for each in ADJECTIVES.split() for noun in NOUNS.split()]
KEY_WORDS, WORDS_OF_STATEMENT = 3, 8
SHORT, LONG = (60, 690), (850, 3_050)
"""Words of a document, for rows of 1,024 and of 4,096: a word has 1.3 tokens."""


class Corpus(NamedTuple):
    """Sentences in their order, and the words that statements are of."""

    sentences: Sequence[str]
    words: Sequence[str]


def sentences_of(folder: Path) -> list[str]:
    """Return the sentences of 4 to 60 words of all `*.txt.gz` of a folder."""
    sentences: list[str] = []
    for path in sorted(folder.glob("*.txt.gz")):
        with gzip.open(path, "rt", encoding="utf-8-sig", errors="replace") as file:
            for paragraph in re.split(r"\n\s*\n|\n(?=[A-Z\"])", file.read()):
                found = re.split(r"(?<=[.!?])\s+(?=[A-Z\"'])", " ".join(paragraph.split()))
                sentences += [each for each in found if 4 <= each.count(" ") + 1 <= 60]
    return sentences


def words_of(tokenizer: Path) -> list[str]:
    """Return the words of four letters or more that are a token: those that `evaluate passkey` asks for.

    Of 5,961 such words a first text had stated 4,935: the model found as many at every distance, within 2 of
    120 words.
    """
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    return [each for each in vocabulary if re.fullmatch("[a-z]{4,}", each)]


def sizes(draw: random.Random, least: int, most: int) -> int:
    """Draw the words of a document: half have nearly the most, the logarithm of the others is uniform."""
    if draw.random() < 0.55:
        return draw.randint(round(0.93 * most), most)
    return round(least * (most / least) ** draw.random())


def filler(draw: random.Random, corpus: Corpus, size: int, *, is_looped: bool) -> list[str]:
    """Return about `size` words of consecutive sentences, or of a few that repeat."""
    some = draw.sample(corpus.sentences, draw.randint(2, 10)) if is_looped else corpus.sentences
    at, found, count = draw.randrange(len(some)), [], 0
    while count < size:
        found.append(some[at % len(some)])
        count += found[-1].count(" ") + 1
        at += 1
    return found


def stated(draw: random.Random, corpus: Corpus, sentences: list[str], number: int) -> list[str]:
    """Insert statements, each twice; more often than by chance at both ends of the document."""
    for prefix in draw.sample(PREFIXES, number):
        text = f"{prefix} {' '.join(draw.sample(corpus.words, KEY_WORDS))}."
        at_start, at_end = draw.random() < 0.2, draw.random() < 0.3
        sentences.insert(0 if at_start else draw.randint(0, len(sentences)), text)
        sentences.insert(len(sentences) if at_end else draw.randint(0, len(sentences)), text)
    return sentences


def document(draw: random.Random, corpus: Corpus, kind: tuple[int, int]) -> str:
    """Return a document of one of the forms."""
    size, share = sizes(draw, *kind), draw.random()
    if share < 0.3:
        return " ".join(filler(draw, corpus, size, is_looped=False))
    if share < 0.55:
        return " ".join(stated(draw, corpus, [], min(250, max(2, size // (2 * WORDS_OF_STATEMENT)))))
    most = max(1, size // 50)
    number = draw.choice((1, 2, draw.randint(1, most), most))
    room = max(10, size - 2 * WORDS_OF_STATEMENT * number)
    return " ".join(stated(draw, corpus, filler(draw, corpus, room, is_looped=share > 0.75), number))


def write_text(corpus: Corpus, file: Path, kind: tuple[int, int], count: int) -> None:
    """Write `count` documents as lines of JSON; the same ones for the same arguments."""
    draw = random.Random(f"{kind}/{count}")
    lines = (json.dumps({"text": document(draw, corpus, kind)}) for _ in range(count))
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
