"""STS-B, SNLI and Quora as sources of contrastive training, without copies and texts of the evaluations.

    python benchmarks/contrastive_data.py DATA WORK

DATA has the folders `contrastive` and `glue` of the shared data. Writes WORK/sts.jsonl (pairs with scores),
WORK/snli.jsonl (triples), WORK/quora.jsonl (duplicates), WORK/sts-dev.jsonl and WORK/sts-test.jsonl, and
prints the counts. A row is left out if its pair is an earlier row's in either order, ignoring case and white
space, or if one of its texts is in an evaluation: STS-B's development and test set, Cranfield, Vaswani.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neobert.data.sources.rows import without_layout

Row = dict[str, Any]
SHAPE_12X512 = {
    "hidden_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
}
"""Encoder that is trained on these sources."""
COLLECTIONS = ("cranfield", "vaswani_npl")
FIRST, SECOND, SCORE = 5, 6, 4
"""Columns of STS-B."""


def lines(path: Path) -> Iterator[str]:
    with (
        gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
    ) as file:
        yield from (line.rstrip("\n") for line in file)


def tsv(path: Path) -> Iterator[list[str]]:
    return csv.reader(lines(path), delimiter="\t", quoting=csv.QUOTE_NONE)


def scored(path: Path) -> Iterator[Row]:
    for row in tsv(path):
        yield {"query": row[FIRST], "positive": row[SECOND], "score": float(row[SCORE])}


def sources(data: Path) -> Iterator[tuple[str, str, Iterator[Row]]]:
    """Yield the name of each data set, the source that it is part of, and its rows."""
    contrastive, glue = data / "contrastive", data / "glue"
    yield "STS-B", "sts", scored(contrastive / "stsbenchmark" / "sts-train.csv")
    with_header = csv.DictReader(lines(glue / "STS-B" / "train.tsv"), delimiter="\t", quoting=csv.QUOTE_NONE)
    copies = (
        {"query": row["sentence1"], "positive": row["sentence2"], "score": row["score"]}
        for row in with_header
    )
    yield "STS-B in GLUE", "sts", copies
    triples = map(json.loads, lines(contrastive / "snli" / "triplets.jsonl.gz"))
    yield (
        "SNLI",
        "snli",
        ({"query": row["anchor"], **{k: row[k] for k in ("positive", "negative")}} for row in triples),
    )
    for split in ("dev", "test"):
        rows = (row for row in tsv(contrastive / "quora" / f"{split}.txt.gz") if row[2] == "1")
        yield f"Quora {split}", "quora", ({"query": row[0], "positive": row[1]} for row in rows)


def evaluation_texts(data: Path) -> Iterator[str]:
    for split in ("dev", "test"):
        for row in scored(data / "contrastive" / "stsbenchmark" / f"sts-{split}.csv"):
            yield from (row["query"], row["positive"])
    for name in COLLECTIONS:
        folder = data / "contrastive" / name / "beir"
        for file in ("queries.jsonl", "corpus.jsonl.gz"):
            yield from (json.loads(line)["text"] for line in lines(folder / file))


def write(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def build(data: Path, work: Path, most: int | None = None) -> dict[str, dict[str, int]]:
    """Write the sources and the scored evaluations; return the counts by data set."""
    work.mkdir(parents=True, exist_ok=True)
    evaluated = {without_layout(text) for text in evaluation_texts(data)} - {""}
    seen: set[frozenset[str]] = set()
    kept: dict[str, list[Row]] = {}
    counts: dict[str, dict[str, int]] = {}
    for name, source, rows in sources(data):
        count = counts[name] = {"rows": 0, "copies": 0, "texts_of_evaluations": 0, "kept": 0}
        for row in rows:
            texts = [without_layout(row[key]) for key in ("query", "positive", "negative") if key in row]
            pair = frozenset(texts[:2])
            is_copy, is_evaluated = pair in seen, not evaluated.isdisjoint(texts)
            seen.add(pair)
            count["rows"] += 1
            count["copies"] += is_copy
            count["texts_of_evaluations"] += is_evaluated and not is_copy
            if not (is_copy or is_evaluated):
                count["kept"] += 1
                kept.setdefault(source, []).append(row)
    for source, found in kept.items():
        write(work / f"{source}.jsonl", found[:most])
    for split in ("dev", "test"):
        write(
            work / f"sts-{split}.jsonl",
            [*scored(data / "contrastive" / "stsbenchmark" / f"sts-{split}.csv")][:most],
        )
    return counts


if __name__ == "__main__":
    for name, count in build(Path(sys.argv[1]), Path(sys.argv[2])).items():
        print(name, json.dumps(count))
