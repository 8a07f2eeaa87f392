"""Passages of at most 512 tokens from the text of a folder, some of them held out.

    python benchmarks/passages.py DATA WORK      # DATA/pretrain, DATA/tokenizers/bert-base-uncased

Writes WORK/train.jsonl and WORK/held_out.jsonl (one passage per line, as `dataset.path` reads them), and
WORK/passages.npz with the same passages as tokens, markers included, for programs that read no text. A
passage is consecutive paragraphs of one file, joined by line breaks. Of every 50 blocks of 8 passages one is
held out, chosen by a hash of file and block: a held-out passage shares no paragraph with a training passage.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

ROOM, BLOCK, ONE_OF = 500, 8, 50
"""Tokens of the pieces in a passage: what is cut within a word may be a few tokens more when it is joined."""
HELD_OUT_FOLDER = "wikitext-2"
"""A corpus with its own split and another tokenization, which is left out."""


def texts(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield a name and its paragraphs, for each file; a JSON row is a document of its own."""
    for path in sorted(folder.rglob("*.gz")):
        if path.parent.name == HELD_OUT_FOLDER:
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


def is_held_out(name: str, block: int) -> bool:
    digest = hashlib.sha256(f"{name}/{block}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % ONE_OF == 0


def split(tokenizer: Tokenizer, folder: Path) -> dict[str, list[str]]:
    """Return the passages of both sides, in the order of the files."""
    sides: dict[str, list[str]] = {"train": [], "held_out": []}
    for name, lines in texts(folder):
        found, block = passages(tokenizer, lines), 0
        while chosen := list(islice(found, BLOCK)):
            sides["held_out" if is_held_out(name, block) else "train"] += chosen
            block += 1
    return sides


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
    for side, found in split(tokenizer, chosen.data / "pretrain").items():
        with (chosen.work / f"{side}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in found)
        ids = [encoding.ids for encoding in tokenizer.encode_batch(found)]
        arrays[side] = np.concatenate([np.array(each, dtype=np.uint16) for each in ids])
        arrays[f"{side}_offsets"] = np.cumsum([0, *map(len, ids)])
        print(f"{side}: {len(found):,} passages, {len(arrays[side]):,} tokens, longest {max(map(len, ids))}")
    np.savez(chosen.work / "passages.npz", **arrays)


if __name__ == "__main__":
    main()
