"""Passages of at most 512 tokens from the sides of a corpus, for the measurements of learning.

    python benchmarks/passages.py CORPUS TOKENIZER WORK

CORPUS is a folder that `corpus/build.py` wrote, TOKENIZER one with bert-base-uncased. Writes WORK/train.jsonl
(one passage per line, as `dataset.path` reads them), WORK/passages.npz with the passages as tokens, markers
included, for programs that read no text, and a copy of TOKENIZER as WORK/tokenizer. A passage is consecutive
paragraphs of one document, joined by line breaks. The held-out sides have 600 passages each, as many of each
package, chosen by a hash: `held_out` to choose recipes by, and `test` and `wikitext` that no choice has seen.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from corpus.build import WIKITEXT as OTHER_CORPUS
from corpus.packages import VALIDATION
from held_out import HELD_OUT, TEST, WIKITEXT
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

TRAIN = "train"
ROOM, MAX_HELD_OUT = 500, 600
"""Tokens of the pieces in a passage: what is cut within a word may be a few tokens more when it is joined;
and passages of a held-out side."""


def with_roles(folder: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a folder that has no tokenizer_config.json, with BERT's special tokens."""
    roles = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **roles)


def documents(path: Path) -> Iterator[list[str]]:
    """Yield the paragraphs of each document of a package."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"].split("\n")


def pieces(tokenizer: Tokenizer, lines: list[str]) -> Iterator[tuple[str, int]]:
    """Yield text and its number of tokens, cut where a paragraph is longer than a passage."""
    for line, encoding in zip(lines, tokenizer.encode_batch(lines, add_special_tokens=False), strict=True):
        offsets = encoding.offsets
        for first in range(0, len(offsets), ROOM):
            part = offsets[first : first + ROOM]
            yield line[part[0][0] : part[-1][1]], len(part)


def passages(tokenizer: Tokenizer, lines: list[str]) -> Iterator[str]:
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


def of_package(tokenizer: Tokenizer, path: Path) -> list[str]:
    return [text for lines in documents(path) for text in passages(tokenizer, lines)]


def by_hash(found: Iterable[str], number: int) -> list[str]:
    """Return a fixed sample, which does not depend on the order."""
    return sorted(found, key=lambda text: hashlib.sha256(text.encode()).digest())[:number]


def split(tokenizer: Tokenizer, corpus: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the sides and their passages; those to train on in the order of the packages."""
    tests = set((corpus / TEST).glob("*.jsonl"))
    other = {path for path in tests if path.stem == OTHER_CORPUS}
    held_out = {HELD_OUT: set((corpus / VALIDATION).glob("*.jsonl")), TEST: tests - other, WIKITEXT: other}
    for side, paths in {TRAIN: set((corpus / TRAIN).glob("*.jsonl")), **held_out}.items():
        with ProcessPoolExecutor() as pool:
            found = list(pool.map(partial(of_package, tokenizer), sorted(paths)))
        if side in held_out:
            found = [by_hash(each, MAX_HELD_OUT // len(paths)) for each in found]
        if found:
            yield side, [text for each in found for text in each]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("work", type=Path)
    chosen = parser.parse_args()
    shutil.copytree(chosen.tokenizer, chosen.work / "tokenizer", dirs_exist_ok=True)
    tokenizer = Tokenizer.from_file(str(chosen.tokenizer / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    arrays: dict[str, np.ndarray] = {}
    for side, found in split(tokenizer, chosen.corpus):
        if side == TRAIN:
            with (chosen.work / "train.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": text}) + "\n" for text in found)
        ids = [np.array(each.ids, dtype=np.uint16) for each in tokenizer.encode_batch_fast(found)]
        arrays[side] = np.concatenate(ids)
        arrays[f"{side}_offsets"] = np.cumsum([0, *map(len, ids)])
        print(f"{side}: {len(found):,} passages, {len(arrays[side]):,} tokens, longest {max(map(len, ids))}")
    np.savez_compressed(chosen.work / "passages.npz", **arrays)


if __name__ == "__main__":
    main()
