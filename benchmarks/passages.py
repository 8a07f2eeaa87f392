"""Passages of at most 512 tokens from the text of a folder, some of them held out.

    python benchmarks/passages.py DATA WORK      # DATA/pretrain, DATA/tokenizers/bert-base-uncased

Writes WORK/train.jsonl and WORK/held_out.jsonl (one passage per line, as `dataset.path` reads them), and
WORK/passages.npz with the passages as tokens, markers included, for programs that read no text. A passage is
consecutive paragraphs of one file, joined by line breaks. Of every 50 blocks of 8 passages one is held out to
choose recipes by, and another as a test that no choice has seen, by a hash of file and block: they share no
paragraph with training passages. `wikitext` is the test split of a corpus of its own, not in the training
text; the share of its 13-grams that the training text has is printed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from corpus.overlap import GRAM, shared_grams
from held_out import HELD_OUT, TEST, WIKITEXT
from tokenizers import Tokenizer

TRAIN = "train"
ROOM, BLOCK, ONE_OF = 500, 8, 50
"""Tokens of the pieces in a passage: what is cut within a word may be a few tokens more when it is joined."""
OTHER_CORPUS = "wikitext-2"
"""A corpus with its own split and another tokenization."""


def texts(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield a name and its paragraphs, for each file; a JSON row is a document of its own."""
    for path in sorted(folder.rglob("*.gz")):
        if path.parent.name == OTHER_CORPUS:
            continue
        content = gzip.decompress(path.read_bytes()).decode("utf-8-sig")
        if path.name.endswith(".jsonl.gz"):
            for number, line in enumerate(content.splitlines()):
                yield f"{path.name}:{number}", json.loads(line)["text"].split("\n")
        else:
            yield path.name, paragraphs(content)


def paragraphs(content: str) -> list[str]:
    """Join hard-wrapped lines between blank lines."""
    blocks: list[list[str]] = [[]]
    for line in content.splitlines():
        if line.strip():
            blocks[-1].append(line.strip())
        elif blocks[-1]:
            blocks.append([])
    return [" ".join(block) for block in blocks if block]


def pieces(tokenizer: Tokenizer, lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield text and its number of tokens, cut where a paragraph is longer than a passage."""
    for line in lines:
        offsets = tokenizer.encode(line, add_special_tokens=False).offsets
        for first in range(0, len(offsets), ROOM):
            part = offsets[first : first + ROOM]
            yield line[part[0][0] : part[-1][1]], len(part)


def passages(tokenizer: Tokenizer, lines: Iterable[str]) -> Iterator[str]:
    """Yield consecutive pieces that fit together."""
    held: list[str] = []
    num_tokens = 0
    for text, length in pieces(tokenizer, lines):
        if held and num_tokens + length > ROOM:
            yield "\n".join(held)
            held, num_tokens = [], 0
        held.append(text)
        num_tokens += length
    if held:
        yield "\n".join(held)


def side_of(name: str, block: int) -> str:
    digest = hashlib.sha256(f"{name}/{block}".encode()).digest()
    return {0: HELD_OUT, 1: TEST}.get(int.from_bytes(digest[:8], "big") % ONE_OF, TRAIN)


def split(tokenizer: Tokenizer, folder: Path) -> dict[str, list[str]]:
    """Return the passages of all sides, in the order of the files."""
    sides: dict[str, list[str]] = {TRAIN: [], HELD_OUT: [], TEST: []}
    for name, lines in texts(folder):
        found, block = passages(tokenizer, lines), 0
        while chosen := list(islice(found, BLOCK)):
            sides[side_of(name, block)] += chosen
            block += 1
    other = folder / OTHER_CORPUS / "test.txt.gz"
    if other.exists():
        sides[WIKITEXT] = list(passages(tokenizer, paragraphs(gzip.decompress(other.read_bytes()).decode())))
    return sides


def without_markers(ids: Sequence[int]) -> Sequence[int]:
    return ids[1:-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    path = chosen.data / "tokenizers" / "bert-base-uncased" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    arrays: dict[str, np.ndarray] = {}
    encoded: dict[str, list[list[int]]] = {}
    for side, found in split(tokenizer, chosen.data / "pretrain").items():
        if side in (TRAIN, HELD_OUT):
            with (chosen.work / f"{side}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": text}) + "\n" for text in found)
        ids = encoded[side] = [encoding.ids for encoding in tokenizer.encode_batch(found)]
        arrays[side] = np.concatenate([np.array(each, dtype=np.uint16) for each in ids])
        arrays[f"{side}_offsets"] = np.cumsum([0, *map(len, ids)])
        print(f"{side}: {len(found):,} passages, {len(arrays[side]):,} tokens, longest {max(map(len, ids))}")
        if side != TRAIN:
            share = shared_grams(*(map(without_markers, each) for each in (ids, encoded[TRAIN])))
            print(f"{side}: {share:.2%} of its {GRAM}-grams are in the training text")
    np.savez_compressed(chosen.work / "passages.npz", **arrays)


if __name__ == "__main__":
    main()
