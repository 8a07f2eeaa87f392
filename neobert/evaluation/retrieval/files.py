"""Corpus, queries and judgements of a BEIR folder.

corpus.jsonl    {"_id", "title", "text"}; title may be missing or empty
queries.jsonl   {"_id", "text"}
qrels.tsv       query-id, corpus-id, score; also qrels/test.tsv. A score of 0 or less is not relevant
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from neobert.config.text_formats import COMPRESSIONS
from neobert.data.sources.lines import LinePiece, line_pieces
from neobert.data.sources.rows import RowFormat
from neobert.data.sources.table_rows import csv_rows
from neobert.data.sources.text_files import open_decompressed, read_table
from neobert.encoding.texts import size_and_digest
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.plurals import listed
from neobert.printable import printable

CODE = "beir-folder"
HEADER = ("query-id", "corpus-id", "score")
JUDGEMENTS = ("qrels.tsv", "qrels/test.tsv")


@dataclass(frozen=True, slots=True)
class Collection:
    """A retrieval dataset.

    Attributes:
        name: name of its folder.
        corpus, queries: texts by id, in the order of the files; only queries with a relevant document.
        relevance: graded judgements above 0, by query and document.
        own_documents: queries that are documents of the corpus too, with the same id and the same text.
        num_unjudged: queries without a relevant document.
        num_unknown: judgements of documents or queries that are not in the files.
        identity: describes the content of the files.
    """

    name: str
    corpus: dict[str, str]
    queries: dict[str, str]
    relevance: dict[str, dict[str, int]]
    own_documents: frozenset[str]
    num_unjudged: int
    num_unknown: int
    identity: list[Any]


def read_collection(folder: Path) -> Collection:
    """Read a BEIR folder.

    Raises `ProjectError` for a missing file, an invalid row, or if no document is judged relevant.
    """
    files = [
        _find_file(folder, ("corpus.jsonl",)),
        _find_file(folder, ("queries.jsonl",)),
        _find_file(folder, JUDGEMENTS),
    ]
    queries = {name: _prepend_title(title, text) for name, title, text in _read_texts(files[1])}
    corpus: dict[str, str] = {}
    own: set[str] = set()
    for name, title, text in _read_texts(files[0]):
        corpus[name] = _prepend_title(title, text)
        # Equal ids alone mean nothing: many collections number queries and documents from 1.
        if name in queries and queries[name].strip() == text.strip():
            own.add(name)
    relevance: dict[str, dict[str, int]] = {}
    num_unknown = 0
    for query, document, score in _read_judgements(files[2]):
        if query not in queries or document not in corpus:
            num_unknown += 1
        elif score > 0:
            relevance.setdefault(query, {})[document] = score
    if not relevance:
        message = "the file has no score above 0 for a query and a document of this folder"
        hint = f"correct the columns {HEADER[0]} and {HEADER[1]}: ids are the _id of a query and a document"
        raise ProjectError(CODE, message, hint, str(files[2]))
    judged = {name: text for name, text in queries.items() if name in relevance}
    identity = [size_and_digest(file) for file in files]
    return Collection(
        name=folder.name,
        corpus=corpus,
        queries=judged,
        relevance=relevance,
        own_documents=frozenset(own & judged.keys()),
        num_unjudged=len(queries) - len(judged),
        num_unknown=num_unknown,
        identity=identity,
    )


def _find_file(folder: Path, names: tuple[str, ...]) -> Path:
    candidates = [folder / f"{name}{suffix}" for name in names for suffix in ("", *COMPRESSIONS)]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        hint = "pass a folder with corpus.jsonl, queries.jsonl and qrels.tsv (or qrels/test.tsv)"
        raise ProjectError(CODE, f"the folder has no {' or '.join(names)}", hint, str(folder), EXIT_USAGE)
    return found


def _read_texts(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield id, title and text of each row. Raises `ProjectError` for a missing value or a repeated id."""
    seen: set[str] = set()
    for location, row in read_table(file):
        name, text = row.get("_id"), row.get("text")
        if not isinstance(name, str | int) or not isinstance(text, str):
            raise ProjectError(
                CODE, "the row has no _id or no text", "write an object with _id and text per line", location
            )
        if str(name) in seen:
            message = f"_id {printable(str(name))} is repeated"
            raise ProjectError(CODE, message, "give each row its own _id", location)
        seen.add(str(name))
        yield str(name), str(row.get("title") or "").strip(), text


def _prepend_title(title: str, text: str) -> str:
    return text if not title or text.startswith(title) else f"{title} {text}".strip()


def _read_judgements(file: Path) -> Iterator[tuple[str, str, int]]:
    """Yield query, document and score of each line. Raises `ProjectError` for contradictory scores."""
    seen: dict[tuple[str, str], tuple[int, str]] = {}
    with open_decompressed(file) as handle:
        pieces = line_pieces(handle, file)
        first = next(pieces, LinePiece(1, "", is_start=True, is_end=True))
        _require_header(first, file)
        for location, row in csv_rows(chain([first], pieces), file, "\t", RowFormat((), tsv_quotes=False)):
            query, document = row[HEADER[0]], row[HEADER[1]]
            grade = _parse_grade(row[HEADER[2]], location)
            earlier, earlier_place = seen.setdefault((query, document), (grade, location))
            if earlier != grade:
                message = (
                    f"query {printable(query)} and document {printable(document)} have score {grade} here, "
                    f"and {earlier} in {earlier_place}"
                )
                raise ProjectError(CODE, message, "remove one of the two lines", location)
            yield query, document, grade


def _parse_grade(score: str, location: str) -> int:
    """Return a score as an integer. Raises `ProjectError` unless it is a whole number, such as 2 or 1.0."""
    try:
        if (value := float(score)).is_integer():
            return int(value)
    except ValueError:
        pass
    message = f"score {printable(score)} is not a whole number"
    raise ProjectError(CODE, message, "write 0 for not relevant, and 1 or more", location)


def _require_header(first: LinePiece, file: Path) -> None:
    """Raise `ProjectError` unless a header line names `HEADER`; a TREC file has none."""
    if not set(HEADER) <= set(first.text.rstrip("\r\n").split("\t")):
        message = f"the first line does not name the columns {listed(HEADER)}, with tabs between them"
        hint = "add a header line; in a TREC file (query 0 document score), also remove the second column"
        raise ProjectError(CODE, message, hint, f"{file}:1")
