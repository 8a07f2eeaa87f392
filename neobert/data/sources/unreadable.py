"""Errors for files that are not text: their format, and the command that converts them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from neobert.config.text_formats import COMPRESSIONS
from neobert.errors import ProjectError
from neobert.runfiles.lfs_pointer import POINTER_START, lfs_pointer_error

# A converted copy next to the file would not help in a folder: every file there is read.
_REPLACE = "iconv -f {encoding} -t UTF-8 {{name}} > {{stem}}.utf8 && mv {{stem}}.utf8 {{name}}"
_WITHOUT_FIRST = "delete the first line: tail -n +2 {name} > {stem}.rest && mv {stem}.rest {name}"
_UTF_16 = ("is UTF-16", f"convert the file: {_REPLACE.format(encoding='UTF-16')}")
_ARROW = (
    "is an Arrow file",
    "set dataset.path to the folder that save_to_disk wrote, or convert the file: "
    "python -c 'import sys, datasets; datasets.Dataset.from_file(sys.argv[1]).to_parquet(sys.argv[2])' "
    "{name} {stem}.parquet",
)
_FEATHER = (
    "is an Arrow file",
    "convert the file: python -c 'import sys; from pyarrow import feather, parquet; "
    "parquet.write_table(feather.read_table(sys.argv[1]), sys.argv[2])' {name} {stem}.parquet",
)
_ZIP = ("is a zip archive", "unpack the archive and set dataset.path to the folder: unzip {name} -d {stem}")
_TAR = (
    "is a tar archive",
    "unpack the archive and set dataset.path to the folder: mkdir {stem} && tar -xf {name} -C {stem}",
)
_HTML = ("is HTML", "extract its text into a .txt or .jsonl file, for example with trafilatura")
_DOCUMENT = ("is a formatted document", "extract its text into a .txt or .jsonl file")
_OTHER_TEXT = (
    "is not read: its suffix is not one of a text format",
    "if it is plain text: cp {name} {stem}.txt",
)
_WORDS = (_OTHER_TEXT[0], "if each line has a word and its label: cp {name} {stem}.conll")
_CONLLU = (
    _OTHER_TEXT[0],
    "keep the words and their parts of speech: grep -vE '^(#|[0-9]+[-.])' {name} | cut -f2,4 > {stem}.conll",
)
_PICKLE = (
    "may run code when it is opened",
    "on a machine where you trust the file, save the text as .jsonl or .parquet",
)


def _compressed_message_and_hint(suffix: str) -> tuple[str, str]:
    return (
        f"is compressed, but its name does not end in {suffix}",
        f"rename the file: mv {{name}} {{name}}{suffix}",
    )


PARQUET_MARK = b"PAR1"
_COMPRESSED = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"\xfd7zXZ\x00": ".xz", b"BZh91AY&SY": ".bz2"}
_MARKS = {
    b"\xff\xfe": _UTF_16,
    b"\xfe\xff": _UTF_16,
    **{mark: _compressed_message_and_hint(suffix) for mark, suffix in _COMPRESSED.items()},
    PARQUET_MARK: (
        "is parquet, but its name does not end in .parquet",
        "rename the file: mv {name} {stem}.parquet",
    ),
    b"ARROW1": _FEATHER,
    b"\xff\xff\xff\xff": _ARROW,
    b"PK\x03\x04": _ZIP,
    b"%PDF-": _DOCUMENT,
}
MARK_BYTES = 512
_TAR_MARK, _TAR_MARK_OFFSET = b"ustar", 257

_KINDS = {
    ".arrow": _ARROW,
    ".feather": _FEATHER,
    ".zip": _ZIP,
    **dict.fromkeys((".tar", ".tgz", ".tbz2", ".txz"), _TAR),
    **dict.fromkeys((".html", ".htm", ".xml", ".warc"), _HTML),
    **dict.fromkeys((".pdf", ".docx", ".doc", ".odt", ".epub", ".rtf"), _DOCUMENT),
    **dict.fromkeys((".bio", ".iob", ".iob2", ".bioes"), _WORDS),
    ".conllu": _CONLLU,
    **dict.fromkeys((".rst", ".text", ".log", ".tex", ""), _OTHER_TEXT),
    **dict.fromkeys((".pkl", ".pickle", ".pt", ".pth", ".npy"), _PICKLE),
    ".lz4": ("is lz4", "unpack the file: lz4 -d {name}"),
    ".7z": (
        "is a 7-Zip archive",
        "unpack the archive and set dataset.path to the folder: 7z x {name} -o{stem}",
    ),
    ".py": ("is a program", "write its text as .jsonl or .parquet; programs are not run"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), ("is a spreadsheet", "save the table as .csv")),
}
_FEW_BYTES = 32
_DELIMITER_LINE = re.compile(r"sep=.\s*")
_TEXT_CONTROLS = frozenset(b"\t\n\v\f\r\b\x1b")


def unreadable_error(location: Path | str, message: str, hint: str) -> ProjectError:
    """Return DAT001 for text that cannot be read."""
    return ProjectError("DAT001", message, hint, str(location))


def unopened_error(path: Path, error: OSError) -> ProjectError:
    """Return DAT001 for a file that cannot be opened or read, with the operating system's reason."""
    message = f"cannot be read: {error.strerror or error}"
    return unreadable_error(path, message, "check the path and its permissions")


def conversion_to_text(suffix: str, path: Path) -> tuple[str, str] | None:
    """Return (description of the format, command that converts `path`), or None for an unknown suffix."""
    found = _KINDS.get(suffix)
    return None if found is None else (found[0], _fill_file_hint(found[1], path))


def check_start(start: bytes, path: Path, expected_mark: bytes | None = None) -> None:
    """Raise DAT001 if a file starts like UTF-16, like an unexpected format or like a pointer of Git LFS.

    `expected_mark`: first bytes of the file's own format; None for text.
    """
    if start.startswith(POINTER_START):
        raise lfs_pointer_error(path, "DAT001")
    if start[_TAR_MARK_OFFSET:].startswith(_TAR_MARK):
        raise unreadable_error(path, _TAR[0], _fill_file_hint(_TAR[1], path))
    for mark, (message, hint) in _MARKS.items():
        if mark != expected_mark and start.startswith(mark):
            raise unreadable_error(path, message, _fill_content_hint(hint, path))
    if expected_mark is None and (encoding := _detect_utf16(start[:MARK_BYTES])):
        hint = f"convert the file: {_REPLACE.format(encoding=encoding)}"
        raise unreadable_error(path, _UTF_16[0], _fill_content_hint(hint, path))


def _detect_utf16(start: bytes) -> str:
    """Return the UTF-16 variant, recognized by a control character as every other byte; else ""."""
    controls = [_count_control_characters(half) for half in (start[::2], start[1::2])]
    if len(start) < _FEW_BYTES or max(controls) < len(start) // 4 or min(controls) > len(start) // 8:
        return ""
    return "UTF-16BE" if controls[0] > controls[1] else "UTF-16LE"


def check_first_line(line: str, path: Path) -> None:
    """Raise DAT001 if the first line of a table names the delimiter for spreadsheets (`sep=;`)."""
    if _DELIMITER_LINE.fullmatch(line):
        message = f"is {line.strip()}, which only spreadsheets read"
        raise unreadable_error(f"{path}:1", message, _fill_content_hint(_WITHOUT_FIRST, path))


def undecodable_error(raw: bytes, offset: int, path: Path, line: int, column: int) -> ProjectError:
    """Return the error (DAT001) for a line that is binary data or not UTF-8.

    `offset` is the index in `raw` of the first invalid byte; `raw` starts `column` bytes into the line.
    """
    where = f"{path}:{line}"
    if _is_binary(raw):
        return unreadable_error(
            where,
            "is binary data, not text",
            "replace the damaged file, or give it the suffix of its format",
        )
    return unreadable_error(
        where,
        f"is not UTF-8: byte 0x{raw[offset]:02x} at column {column + offset + 1}",
        _fill_content_hint(f"convert the file, for example: {_REPLACE.format(encoding='CP1252')}", path),
    )


def _is_binary(raw: bytes) -> bool:
    """Return whether more than 1 in 100 bytes are control characters."""
    return 100 * _count_control_characters(raw) > len(raw)


def _count_control_characters(raw: bytes) -> int:
    """Return the number of control characters that text does not have."""
    return sum(byte < 0x20 and byte not in _TEXT_CONTROLS for byte in raw)


def _fill_content_hint(hint: str, path: Path) -> str:
    """Fill the path into a hint that edits the content; a compressed file is decompressed first."""
    if path.suffix.lower() not in COMPRESSIONS:
        return _fill_file_hint(hint, path)
    return f"decompress the file, then {_fill_file_hint(hint, path.with_suffix(''))}"


def _fill_file_hint(hint: str, path: Path) -> str:
    """Fill the path and its stem into a hint, quoted for a shell and with `./` before a leading dash."""
    stem = path.with_name(path.name.partition(".")[0] or "text")
    words = (f"./{word}" if word.startswith("-") else word for word in map(str, (path, stem)))
    return hint.format_map(dict(zip(("name", "stem"), map(shlex.quote, words), strict=True)))
