"""Time and memory of `search` over 1,000,000 random vectors, and its equality to the whole product.

    python benchmarks/search_index.py MODEL WORK_DIR                  # about 1.7 GB on disk
    python benchmarks/search_index.py MODEL WORK_DIR --texts 20000    # a dry run
    python benchmarks/search_index.py MODEL WORK_DIR --output docs/measurements/search.json

Counted is the time from the vector of the query to the texts that were found (`search_s` of the report), with
the file in the page cache after a first search, which is not counted; not counted are the start of the
process and the encoding of the query. Memory is the peak of the resident set of the largest process, with
Python, torch and the model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measurement import write_measurement

from neobert.encoding import Encoder
from neobert.encoding.request import EMBEDDINGS, Request
from neobert.search.index import INDEX, write_index

QUERY, TOP, BLOCK = "how do I resume a run", 10, 50_000
LIMIT_S, LIMIT_MIB = 1.0, 500
# A small process starts the command: a child counts the memory of the process that it was forked from.
MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


class Numbered:
    """Texts of the index."""

    label = "numbered texts"

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[str]:
        return (f"text number {number}" for number in range(self.count))

    def known_count(self) -> int:
        return self.count

    def identity(self) -> int:
        return self.count


def write_vectors(file: Path, count: int, width: int) -> None:
    random = np.random.default_rng(0)
    rows = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(count, width))
    for start in range(0, count, BLOCK):
        drawn = random.standard_normal((min(BLOCK, count - start), width), dtype=np.float32)
        rows[start : start + BLOCK] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    rows.flush()


def make_index(folder: Path, encoder: Encoder, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    request = Request(encoder.folder, "none", str(folder / EMBEDDINGS), is_index=True)
    settings = {"pooling": encoder.pooling, "max_length": encoder.tokenizer.max_length, "prompt": ""}
    write_index(request, Numbered(count), count, settings)
    write_vectors(folder / EMBEDDINGS, count, encoder.model.hidden_size)


def search(folder: Path) -> tuple[dict[str, Any], int]:
    """Return the report of a search, and the peak of its largest process in MiB."""
    words = ["launcher", "search", folder, QUERY, "--top", TOP, "--output-format", "json"]
    command = [sys.executable, "-c", MEASURED, sys.executable, "-m", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    report, _, peak_mib = done.stdout.decode().rpartition("peak ")
    return dict(json.loads(report)), int(peak_mib)


def is_equal(found: list[dict[str, Any]], vector: Any, folder: Path) -> bool:
    """Return whether the rows are those of the whole product, and the scores its own to 1e-6."""
    rows = np.load(folder / EMBEDDINGS, mmap_mode="r")
    scores = np.concatenate([rows[start : start + BLOCK] @ vector for start in range(0, len(rows), BLOCK)])
    best = np.argsort(-scores, kind="stable")[:TOP]
    gaps = np.abs(scores[best] - [each["score"] for each in found])
    return [each["row"] for each in found] == best.tolist() and bool(gaps.max() < 2e-6)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("work_dir", type=Path)
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    encoder = Encoder.load(options.model.absolute(), normalize=True)
    if not (options.work_dir / INDEX).exists():
        make_index(options.work_dir, encoder, options.texts)
    search(options.work_dir)
    reports, peaks_mib = zip(*(search(options.work_dir) for _ in range(options.rounds)), strict=True)
    seconds = [report["search_s"] for report in reports]
    vector = encoder.encode([QUERY], prompt=encoder.prompts.of_queries)[0]
    detail = {
        "texts": reports[0]["texts"],
        "width": encoder.model.hidden_size,
        "seconds": seconds,
        "peak_mib": max(peaks_mib),
        "limit_s": LIMIT_S,
        "limit_mib": LIMIT_MIB,
        "equal_to_the_whole_product": is_equal(reports[0]["results"][0]["found"], vector, options.work_dir),
    }
    print(json.dumps(detail))
    if options.output:
        write_measurement(options.output, statistics.median(seconds), "s", LIMIT_S, detail)


if __name__ == "__main__":
    main()
