"""Formats of text files, by suffix."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

TEXT, CONLL, PARQUET = ".txt", ".conll", ".parquet"
TOKEN_IDS = ".ds"
"""Documents that datatrove has tokenized."""
WITH_TOKEN_IDS = (".index", ".metadata")
"""Suffixes of the files that are read with a file of token ids."""
MARKDOWN = (".md", ".markdown")
TABLES = (".csv", ".tsv", ".json", CONLL)
"""Formats that, next to other text, often describe that text."""
ROWS_IN_LINES = (".csv", ".tsv", ".jsonl", ".ndjson")
"""Formats with a row per line, except for line ends in quotes."""
KINDS = (TEXT, ".jsonl", ".ndjson", ".json", ".csv", ".tsv", CONLL, PARQUET, TOKEN_IDS)
COMPRESSIONS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
_COMPRESSED = f"optionally compressed as {', '.join(COMPRESSIONS)}"
READABLE_TABLES = f"{', '.join(KINDS[1:-1])}, {_COMPRESSED}"
READABLE = f"{TEXT}, {MARKDOWN[0]}, {READABLE_TABLES}; {TOKEN_IDS}"


def text_format(path: Path) -> str | None:
    """Return the format suffix, such as `.jsonl` for `a.jsonl.gz`; None for an unsupported format.

    Markdown is plain text: `.txt`.
    """
    suffix = uncompressed_suffix(path)
    if suffix in MARKDOWN:
        return TEXT
    if suffix == TOKEN_IDS and path.suffix.lower() != TOKEN_IDS:
        return None
    return suffix if suffix in KINDS else None


def hint_for_plain_text(path: Path) -> str:
    """Return the hint for a plain-text file where rows are expected."""
    compression = path.suffix if path.suffix.lower() in COMPRESSIONS else ""
    copies = {kind: quote(f"{without_suffixes(path)}{kind}{compression}") for kind in (".tsv", CONLL)}
    return (
        "pass JSON lines, CSV, TSV, CoNLL or parquet; if tabs separate the fields: "
        f"cp {quote(str(path))} {copies['.tsv']}; if each line has a word and its label: "
        f"cp {quote(str(path))} {copies[CONLL]}"
    )


def is_plain(path: Path) -> bool:
    """Return whether a file is uncompressed text, so that its size equals its content's."""
    return text_format(path) not in (PARQUET, TOKEN_IDS) and path.suffix.lower() not in COMPRESSIONS


def uncompressed_suffix(path: Path) -> str:
    """Return the last suffix in lower case, ignoring a compression suffix; empty if there is none."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def without_suffixes(path: Path) -> Path:
    """Return the path without its format suffix and compression suffix."""
    whole = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    return whole.with_suffix("")
