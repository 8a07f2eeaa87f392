import bz2
import gzip
import json
import lzma
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config.text_formats import text_format
from neobert.data.sources import lines, text_files
from neobert.data.sources.rows import Field, RowFormat
from neobert.data.sources.text_files import file_columns, read_rows
from neobert.errors import ProjectError
from tests.data.conftest import format_of
from tests.refusals import refusal_of


def read(path: Path, column: str | None = None) -> list[str]:
    return [row["text"] for row in read_rows(path, format_of(column))]


def refused(path: Path, code: str, says: str, column: str | None = None) -> ProjectError:
    error = refusal_of(read, code, says, path, column)
    assert str(path) in error.place
    return error


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(PACKERS.get(path.suffix, bytes)(content))
    return path


def zstd(content: bytes) -> bytes:
    return pa.Codec("zstd").compress(content, asbytes=True)


PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", ".txt"),
        ("a.b.jsonl.gz", ".jsonl"),
        ("A.PARQUET", ".parquet"),
        ("a.txt.bz2", ".txt"),
        ("a.json.zst", ".json"),
        ("a.html", None),
        ("txt", None),
        ("a.gz", None),
    ],
)
def test_a_file_is_known_by_its_name(name, kind):
    assert text_format(Path("/data.txt") / name) == kind


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_blank_lines_separate_the_documents_of_a_text(tmp_path, suffix):
    content = "\ufeffone\nmore of one\r\n\r\n \t \ntwo\n\n\n\nthree".encode()
    assert read(put(tmp_path / f"a.txt{suffix}", content)) == ["one\nmore of one", "two", "three"]


@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
def test_lines_inside_a_document_end_with_a_line_feed(tmp_path, end):
    assert read(put(tmp_path / "a.txt", end.join([b"one", b"two", b"", b"three"]))) == ["one\ntwo", "three"]


def test_a_long_run_is_cut_at_the_end_of_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "MAX_RUN_CHARACTERS", 10)
    path = put(tmp_path / "a.txt", b"aaaa\nbbbb\ncccc\nddddd\n\ne")
    assert read(path) == ["aaaa\nbbbb", "cccc", "ddddd", "e"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_long_line_is_cut_at_white_space_and_never_held(tmp_path, monkeypatch, suffix):
    """Blocks of 64 bytes here; a file of one line is read in pieces, and its characters stay whole."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    monkeypatch.setattr(text_files, "MAX_RUN_CHARACTERS", 100)
    words = ["w\u00f6rter", "\u4f60\u597d", "plain"] * 100
    path = put(tmp_path / f"a.txt{suffix}", ("one\n\n" + " ".join(words) + "\nend").encode())
    first, *runs, last = read(path)
    assert (first, last.endswith("\nend")) == ("one", True)
    assert " ".join([*runs, last]).split() == [*words, "end"]
    assert 90 < min(map(len, runs)) <= max(map(len, runs)) <= 100


@pytest.mark.parametrize("content", [b"\0" * 1000, b"x" * 1000, b" " * 1000 + b"x"])
def test_a_line_without_white_space_is_cut_all_the_same(tmp_path, monkeypatch, content):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    monkeypatch.setattr(text_files, "MAX_RUN_CHARACTERS", 100)
    runs = read(put(tmp_path / "a.txt", content))
    assert max(map(len, runs)) <= 100
    assert "".join(runs).strip() == content.decode().strip()


def test_a_row_that_is_too_long_is_named_by_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    monkeypatch.setattr(lines, "MAX_LINE_CHARACTERS", 200)
    path = put(tmp_path / "a.jsonl", b'{"text": "x"}\n{"text": "' + b"x" * 200)
    error = refused(path, "DAT001", "longer than 200 characters")
    assert error.place == f"{path}:2"


def test_rows_may_end_as_lines_did_on_old_macs(tmp_path):
    assert read(put(tmp_path / "a.jsonl", b'{"text": "one"}\r{"text": "two"}\r')) == ["one", "two"]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1)),
    st.sampled_from([8, 9, 64, 1 << 20]),
    st.booleans(),
)
def test_no_text_is_lost(tmp_path, texts, block_bytes, is_per_line):
    path = put(tmp_path / "a.txt", "\n".join(texts).encode())
    expected = [line.removeprefix("\ufeff") if i == 0 else line for i, line in enumerate(texts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block_bytes)
        rows = replace(format_of(), document_per_line=is_per_line)
        documents = [row["text"] for row in read_rows(path, rows)]
        joined = "\n".join(documents).split("\n")
    assert not is_per_line or all("\n" not in each and each.strip() for each in documents)
    assert [x for x in joined if x.strip()] == [x for x in expected if x.strip()]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_many_blank_lines_are_read_in_blocks_and_counted(tmp_path, monkeypatch, end):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    path = put(tmp_path / "a.txt", b"one" + end * 10_000 + b"two" + end * 9_999 + b"\xff")
    with path.open("rb") as handle, pytest.raises(ProjectError) as refusal:
        list(lines.line_pieces(handle, path, joins_blank=True))
    assert refusal.value.place == f"{path}:20000"
    path.write_bytes(path.read_bytes()[:-1])
    assert read(path) == ["one", "two"]
    with path.open("rb") as handle:
        assert sum(1 for _ in lines.line_pieces(handle, path, joins_blank=True)) < 1500


def test_empty_files_have_no_documents(tmp_path):
    assert read(put(tmp_path / "a.txt", b"")) == []
    assert read(put(tmp_path / "a.jsonl.gz", b"\n\n")) == []


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_rows_of_jsonl(tmp_path, suffix):
    rows = b'\xef\xbb\xbf{"text": "one"}\n\n{"text": null, "id": 3}\n{"id": 1, "text": "two\\nlines"}\n'
    assert read(put(tmp_path / f"a.jsonl{suffix}", rows)) == ["one", "", "two\nlines"]


def test_half_a_surrogate_pair_is_replaced(tmp_path):
    path = put(tmp_path / "a.jsonl", b'{"text": "a\\ud83d b \\ud83d\\ude00"}\n')
    assert read(path) == ["a\ufffd b \U0001f600"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_rows_of_parquet(tmp_path, suffix):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3], "content": ["one", None, "three"]}), path)
    if suffix:
        path = put(tmp_path / "b.parquet.gz", path.read_bytes())
    assert read(path) == ["one", "", "three"]
    assert file_columns(path, format_of(None)) == "content"


def test_the_column_of_the_first_row_is_named(tmp_path):
    assert file_columns(put(tmp_path / "a.txt", b"text"), format_of(None)) is None
    assert file_columns(put(tmp_path / "a.jsonl", b"\n"), format_of(None)) is None
    path = put(tmp_path / "b.jsonl.gz", b'\n{"sentence": "x", "body": "y"}\n{"text": "z"}')
    assert file_columns(path, format_of(None)) == "sentence"
    assert file_columns(path, format_of("body")) == "body"
    refusal_of(file_columns, "DAT011", "no column 'text'", path, format_of("text"))


@pytest.mark.parametrize(
    ("row", "column", "says"),
    [
        ({"body": "x", "id": 1}, None, "none of the columns"),
        ({"text": "x", "content": "y"}, None, "text, content"),
        ({"body": "x"}, "text", "no column 'text'"),
        ({"text": 5}, None, "holds a number"),
        ({"text": ["a"]}, "text", "holds a list"),
    ],
)
def test_a_column_that_is_absent_ambiguous_or_no_text(tmp_path, row, column, says):
    path = put(tmp_path / "a.jsonl", json.dumps(row).encode())
    error = refused(path, "DAT011", says, column)
    assert error.place.endswith(":1")
    if "holds" not in says:
        assert [name for name in row if repr(name) in error.hint] == [name for name in row if name != "id"]


@pytest.mark.parametrize("text_column", [None, "sentence"])
def test_a_column_is_read_by_one_field(text_column):
    text = Field("text", "dataset.text_column", text_column, ("text", "sentence"))
    fields = (text, Field("pair", "classification.pair_column", "sentence"))
    with pytest.raises(ProjectError, match="pair_column both name column 'sentence'") as refusal:
        RowFormat(fields).columns(dict.fromkeys(["sentence", "other"]), "a.tsv:2")
    assert refusal.value.hint == "set classification.pair_column to one of the columns: 'sentence', 'other'"
    pair = Field("pair", "classification.pair_column", "other")
    assert RowFormat((text, pair)).columns(dict.fromkeys(["sentence", "other"]), "") == {
        "text": "sentence",
        "pair": "other",
    }


@pytest.mark.parametrize(
    ("header", "repeated"),
    [
        ("text,label,label", "label"),
        ("text,text,label", "text"),
        ("text,label,,", None),
        ("text,label,n,n", None),
    ],
)
def test_columns_that_are_read_have_a_name_of_their_own(tmp_path, header, repeated):
    path = put(tmp_path / "a.csv", f"{header}\n{','.join('abcd'[: header.count(',') + 1])}\n".encode())
    text = Field("text", "dataset.text_column", None, ("text", "sentence"))
    rows = read_rows(path, RowFormat((text, Field("label", "classification.label_column", "label"))))
    if repeated is None:
        assert list(rows) == [{"text": "a", "label": "b"}]
        return
    assert refusal_of(list, "DAT011", f"several columns are named '{repeated}'", rows).place == f"{path}:1"


def test_parquet_columns_are_listed(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["x"], "n": [1]}), path)
    assert "columns: 'body'" in refused(path, "DAT011", "none of the columns").hint
    refused(path, "DAT011", "holds a number", "n")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"fine\ncaf\xe9\n", "0xe9 at column 4"),
        ("a.jsonl", b'{"text": "\xff"}', "not UTF-8"),
        ("a.txt", "hello".encode("utf-16"), "UTF-16"),
        ("a.jsonl", b'{"text": "x"}\n{"text": ', "not JSON"),
        ("a.jsonl", b'["text"]', "is a list, not a JSON object"),
        ("a.jsonl", b"[" * 100_000, "not JSON"),
        ("a.parquet", b"PAR1 no parquet at all PAR1", "not a readable parquet"),
        ("a.parquet", b"", "not a readable parquet"),
    ],
)
def test_content_that_cannot_be_read(tmp_path, name, content, says):
    refused(put(tmp_path / name, content), "DAT001", says)


def test_rows_of_parquet_that_are_broken_are_named(tmp_path):
    path = tmp_path / "a.parquet"
    bytes_alone = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    pq.write_table(pa.table({"text": pa.chunked_array([pa.array(["fine"] * 2000), bytes_alone])}), path)
    assert refused(path, "DAT001", "not UTF-8").place == f"{path}, row 2001"
    pq.write_table(pa.table({"text": [b"fine"]}), path)
    assert refused(path, "DAT011", "holds bytes").place == f"{path}, row 1"


def test_parquet_with_a_damaged_page_is_to_be_written_again(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["some words"] * 3000}), path)
    damaged = bytearray(path.read_bytes())
    damaged[20:60] = b"\xff" * 40
    path.write_bytes(damaged)
    assert refused(path, "DAT001", "not a readable parquet").hint == "save the file as parquet again"


def test_a_file_that_went_away(tmp_path):
    refused(tmp_path / "a.txt", "DAT001", "No such file")
