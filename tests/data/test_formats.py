"""Formats of text: each is read or refused by a sentence of its own, with the command that converts it."""

import gzip
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config.schema import DatasetConfig
from neobert.config.text_formats import COMPRESSIONS
from neobert.data.sources import lines, table_rows
from neobert.data.sources.corpus import open_corpus
from neobert.data.sources.rows import NESTED, Field, RowFormat
from neobert.data.sources.table_rows import MESSAGES, array_objects
from neobert.data.sources.text_files import file_columns, read_table
from neobert.errors import ProjectError
from tests.data.conftest import format_of
from tests.data.test_text_files import put, read, refused

TEXTS = ["one", "zwei \U0001f600", "", 'three "quoted", with\nlines']
ROWS = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]


def csv_of(rows: list[dict[str, object]], delimiter: str) -> bytes:
    quoted = (f'{row["id"]}{delimiter}"{str(row["text"]).replace(chr(34), chr(34) * 2)}"' for row in rows)
    return "\r\n".join([f"id{delimiter}text", *quoted]).encode()


SPELLED = {
    "a.ndjson": "\n".join(map(json.dumps, ROWS)).encode(),
    "lines.json": b"\n" + "\n".join(map(json.dumps, ROWS)).encode(),
    "a.json": json.dumps(ROWS).encode(),
    "pretty.json": b"\xef\xbb\xbf" + json.dumps(ROWS, indent=2, ensure_ascii=False).encode(),
    "a.csv": csv_of(ROWS, ","),
    "a.tsv": csv_of(ROWS, "\t"),
}


@pytest.mark.parametrize("name", SPELLED)
def test_rows_are_the_same_in_every_format(tmp_path, name):
    path = put(tmp_path / name, SPELLED[name])
    assert [text.replace("\r\n", "\n") for text in read(path)] == TEXTS
    assert file_columns(path, format_of(None)) == "text"
    assert file_columns(path, format_of("id")) == "id"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_each_compression_is_read_and_damage_named(tmp_path, compression):
    content = random.Random(0).randbytes(5000).hex().encode()
    path = put(tmp_path / f"a.txt{compression}", content)
    assert read(path) == [content.decode()]
    path.write_bytes(path.read_bytes()[:-20])
    refused(path, "DAT001", f"the {COMPRESSIONS[compression]} data is truncated or corrupt")
    path.write_bytes(b"plain text")
    refused(path, "DAT001", COMPRESSIONS[compression])


@given(
    st.lists(
        st.dictionaries(st.text(max_size=3), st.none() | st.text() | st.lists(st.integers()), max_size=3)
    ),
    st.sampled_from([None, 0, 2]),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_an_array_is_its_objects_wherever_it_is_cut(rows, indent, sizes):
    text = f" {json.dumps(rows, indent=indent)} \n"
    assert list(array_objects(chunks_of(text, sizes), 1 << 20)) == rows


def test_a_bare_list_of_messages_is_a_conversation():
    text = '[[{"role": "user"}], []]'
    rows = [{MESSAGES: [{"role": "user"}]}, {MESSAGES: []}]
    assert list(array_objects([text[:9], text[9:]], 99)) == rows


def chunks_of(text: str, sizes: list[int]) -> list[str]:
    chunks, place = [], 0
    while place < len(text):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(text[place : place + size])
        place += size
    return chunks


@pytest.mark.parametrize(
    ("content", "place", "says"),
    [
        ('[{"text": "x"}, {"text": ', ", object 2", "not JSON: Expecting value"),
        ('[{"text": "x"} {"text": "y"}]', ", object 2", "where a comma is expected"),
        ('[{"text": "x"}, "y"]', ", object 2", "where an object is expected"),
        ('[{"text": "x"}, ["y"]]', ", object 2", "'[' where an object is expected"),
        ('[{"text": "x"}', ", object 2", "the text ends where a comma is expected"),
        ("[]]", ", object 1", "where the end is expected"),
        ('[{"a": ' + "[" * 100_000, ", object 1", "not JSON"),
        ('{\n "text": "x"\n}', ":1", "starts a JSON value that spans several lines"),
        ('{"text": ["x", "y"]}', ":1", ""),
        ('{"text":{"0":"x","1":"y"}}', "", "is column-oriented JSON, not rows"),
        ('{"0":{"text":"x"},"1":{"text":"y"}}', "", "is one object of numbered rows"),
        ('{\n  "0": {\n    "text": "x"\n  }\n}', "", "is one object of numbered rows"),
    ],
)
def test_json_that_is_no_array_of_objects(tmp_path, content, place, says):
    path = put(tmp_path / "a.json", content.encode())
    with pytest.raises(ProjectError) as caught:
        read(path)
    assert says in caught.value.message
    assert caught.value.place == f"{path}{place}"


def test_lines_of_objects_with_numbered_keys_are_rows(tmp_path):
    rows = [{"tags": {"0": "x"}, "text": text} for text in TEXTS]
    assert read(put(tmp_path / "a.json", "\n".join(map(json.dumps, rows)).encode())) == TEXTS


def test_a_long_object_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    monkeypatch.setattr(table_rows, "MAX_LINE_CHARACTERS", 200)
    path = put(tmp_path / "a.json", b'[{"text": "' + b"x" * 1000 + b'"}]')
    refused(path, "DAT001", "not JSON")


def test_csv_that_is_broken_is_named_by_its_line(tmp_path):
    error = refused(put(tmp_path / "a.csv", b"id,text\n1,x\n2,y,z\n"), "DAT001", "3 fields")
    assert error.place.endswith("a.csv:3")
    assert error.hint.startswith("quote fields")
    refused(put(tmp_path / "b.csv", b'id,text\n1,"x\n2,y\n'), "DAT001", "is not CSV")
    refused(put(tmp_path / "c.csv", b"one text\nanother\n"), "DAT011", "none of the columns")


@pytest.mark.parametrize(
    ("first_line", "is_row"),
    [
        ("5.000,A man dances", True),
        ("1,A man with a hat is dancing.", True),
        ("Serial no.,How old are you?", False),
        (",body", False),
    ],
)
def test_a_first_line_that_is_a_row_is_named_in_the_hint(tmp_path, first_line, is_row):
    path = put(tmp_path / "a.csv", f"{first_line}\nx,y\n".encode())
    hint = refused(path, "DAT011", "none of the columns").hint
    assert hint.startswith("add a header line or set dataset.column_names, ") == is_row
    assert "set dataset.text_column to one of the columns: " in hint


@pytest.mark.parametrize(
    ("name", "delimiter"), [("e.csv", ";"), ("f.csv", "\t"), ("g.tsv", ","), ("h.csv", "|")]
)
def test_the_header_names_the_delimiter(tmp_path, name, delimiter):
    rows = [{"id": "1", "text": 'a "b", c; d'}, {"id": "2", "text": "e"}]
    assert read(put(tmp_path / name, csv_of(rows, delimiter))) == ['a "b", c; d', "e"]


def test_nested_text_needs_a_column_of_its_own(tmp_path):
    path = put(tmp_path / "a.jsonl", json.dumps({"text": {"lang": "en", "content": "x"}}).encode())
    error = refused(path, "DAT011", "column 'text' holds an object with keys, not text")
    assert error.hint == NESTED


def test_a_quote_that_is_not_closed_is_named_by_the_line_that_opens_it(tmp_path):
    path = put(tmp_path / "a.tsv", b'id\ttext\n\n1\tx\n2\t"y\n3\tz\n4\t"z\n')
    error = refused(path, "DAT001", " (a quoted field runs to line 6)")
    assert error.place == f"{path}:4"
    assert "\t" not in error.message
    path = put(tmp_path / "b.csv", b'id,text\n1,"x\ny"\n2,"z\n3,z\n')
    assert refused(path, "DAT001", " (a quoted field runs to line 5)").place == f"{path}:4"
    path = put(tmp_path / "c.csv", b'id,text\n1,"x\ny",z\n')
    assert refused(path, "DAT001", "3 fields").place == f"{path}:2"


@pytest.mark.parametrize(
    ("name", "line", "hint"),
    [
        ("a.tsv", b"no label", "add the missing fields to this line"),
        ("a.csv", b"no label", "add the missing fields to this line"),
        ("a.tsv", b'"one\t0\ntwo"', "set dataset.tsv_quotes to false"),
        ("a.tsv", b"one\ttwo\t0", "set dataset.tsv_quotes to false"),
    ],
)
def test_a_line_with_missing_fields_is_not_blamed_on_quotes(name, line, hint, tmp_path):
    header = b"text,label" if name == "a.csv" else b"text\tlabel"
    error = refused(put(tmp_path / name, header + b"\n" + line + b"\n"), "DAT001", "but the header has 2")
    assert error.hint.startswith(hint)


def arrow() -> bytes:
    table, sink = pa.table({"text": ["x"]}), io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def zipped() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a.txt", "text")
    return sink.getvalue()


def tarred() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
    return sink.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "says", "way_out"),
    [
        ("a.parquet", arrow(), "is an Arrow file", "' a.parquet a.parquet"),
        ("a.jsonl", arrow(), "is an Arrow file", "feather.read_table"),
        ("a.txt", b"PAR1....PAR1", "is parquet", "mv a.txt a.parquet"),
        ("a.jsonl", zipped(), "is a zip archive", "unzip a.jsonl"),
        ("a b.txt", tarred(), "is a tar archive", "tar -xf 'a b.txt'"),
        ("a.jsonl", b"BZh91AY&SY....", "is compressed", "a.jsonl.bz2"),
        ("a.jsonl", b"\xfd7zXZ\x00....", "is compressed", "a.jsonl.xz"),
        ("a.txt", gzip.compress(b"text", mtime=0), "is compressed", "mv a.txt a.txt.gz"),
        ("a.txt", b"\x28\xb5\x2f\xfd \x00", "is compressed", "mv a.txt a.txt.zst"),
        ("a.txt", ("a text\n" * 9).encode("utf-16-le"), "is UTF-16", "iconv -f UTF-16LE -t UTF-8 a.txt"),
        ("a.txt", ("текст\n" * 9).encode("utf-16-le"), "is UTF-16", "iconv -f UTF-16LE -t UTF-8 a.txt"),
        (
            "a.jsonl",
            '{"text": "a long text"}'.encode("utf-16-be"),
            "is UTF-16",
            "iconv -f UTF-16BE -t UTF-8 a.jsonl",
        ),
        (
            "a.csv",
            b"\xef\xbb\xbfsep=;\r\ntext;label\r\na;b\r\n",
            "is sep=;",
            "tail -n +2 a.csv > a.rest && mv",
        ),
        (
            "a.csv.gz",
            b"sep=;\ntext;label\na;b\n",
            "is sep=;",
            "decompress the file, then delete the first line: tail -n +2 a.csv > a.rest && mv a.rest a.csv",
        ),
        (
            "a.txt.gz",
            "déjà vu".encode("latin1"),
            "is not UTF-8",
            "decompress the file, then convert the file, for example: iconv -f CP1252 -t UTF-8 a.txt >",
        ),
        (
            "a.txt",
            random.Random(1).randbytes(4096),
            "is binary data",
            "replace the damaged file",
        ),
        (
            "a.txt",
            b"caf\xe9 " * 50,
            "is not UTF-8",
            "iconv -f CP1252 -t UTF-8 a.txt > a.utf8 && mv a.utf8 a.txt",
        ),
    ],
)
def test_content_of_another_format_than_the_name_says(tmp_path, name, content, says, way_out):
    hint = refused(put(tmp_path / name, content), "DAT001", says).hint
    assert way_out in hint.replace(f"{tmp_path}/", "")
    assert (str(tmp_path) in hint) != ("replace the damaged file" in hint), "a command can be pasted as it is"


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.parquet"])
def test_a_pointer_of_git_lfs_is_not_text(tmp_path, name):
    (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    hint = refused(tmp_path / name, "DAT001", "is a pointer of Git LFS").hint
    assert hint == f"download the content: git -C {tmp_path} lfs pull"
    (tmp_path / name).rename(tmp_path / f"{name}.gz")
    if name != "a.parquet":
        refused(tmp_path / f"{name}.gz", "DAT001", "is a pointer of Git LFS")


@pytest.mark.parametrize(
    ("name", "says", "way_out"),
    [
        ("a.arrow", "is an Arrow file", "set dataset.path to the folder"),
        ("x.iob2", "is not read", "if each line has a word and its label: cp x.iob2 x.conll"),
        ("x.conllu", "is not read", "grep -vE '^(#|[0-9]+[-.])' x.conllu | cut -f2,4 > x.conll"),
        ("-$(id) '.rst", "is not read", """cp '-$(id) '"'"'.rst' '-$(id) '"'"''.txt"""),
        ("a.zip", "is a zip archive", "unzip a.zip -d a"),
        ("a.tar.gz", "is a tar archive", "tar -xf a.tar.gz -C a"),
        ("a.html", "is HTML", "extract its text"),
        ("a.log", "is not read", "cp a.log a.txt"),
        ("a.pdf", "is a formatted document", "extract its text"),
        ("a.py", "is a program", "not run"),
        ("a.pkl", "may run code", ".jsonl"),
        ("a.lz4", "is lz4", "lz4 -d a.lz4"),
    ],
)
def test_a_file_that_is_not_read_has_its_own_way_out(tmp_path, name, says, way_out):
    (tmp_path / "folder").mkdir()
    path = put(tmp_path / "folder" / name, b"content")
    errors = [opening_error(place) for place in (path, path.parent)]
    assert [error.code for error in errors] == ["DAT001", "DAT001"]
    assert says in errors[0].message
    assert f"found 1 x .{name.partition('.')[2]}" in errors[1].message
    assert way_out in errors[0].hint.replace(f"{path.parent}/", "")
    assert way_out.split()[0] in errors[1].hint


@pytest.mark.child
def test_the_command_for_a_feather_file_converts_it(tmp_path):
    error = opening_error(put(tmp_path / "a.feather", arrow()))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = error.hint.removeprefix("convert the file: ")
    subprocess.run(["sh", "-c", command], check=True, env={**os.environ, "PATH": path})
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == [{"text": "x"}]


def opening_error(path: Path) -> ProjectError:
    with pytest.raises(ProjectError) as caught:
        open_corpus(DatasetConfig(path=str(path)))
    return caught.value


def test_rows_of_parquet_are_read_by_their_size(tmp_path, monkeypatch):
    import pyarrow.parquet as pq

    monkeypatch.setattr(table_rows, "MAX_BYTES", 10_000)
    texts = ["x" * 3000, *("y" * 10 for _ in range(50))]
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": texts}), path, row_group_size=10, compression="none", use_dictionary=False
    )
    assert table_rows._rows_per_batch(pq.ParquetFile(path).metadata) < 51
    assert read(path) == texts


def test_every_name_of_a_file_is_read_once(tmp_path):
    """Links between siblings, to a parent and to a file; the text is known by its real name."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        put(tmp_path / name / "text.txt", name.encode())
    (tmp_path / "a" / "0-sibling").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "sibling").symlink_to(tmp_path / "a")
    (tmp_path / "b" / "parent").symlink_to(tmp_path)
    (tmp_path / "b" / "0.txt").symlink_to(tmp_path / "b" / "text.txt")
    train = open_corpus(DatasetConfig(path=str(tmp_path))).train
    assert [path.relative_to(tmp_path).as_posix() for path in train.files] == ["a/text.txt", "b/text.txt"]
    assert "1 x link to a file that is read" in train.label


LABELLED = RowFormat((Field("text", "dataset.text_column", "text"), Field("label", "label_column", "label")))


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (("train.jsonl", "train.tsv"), LABELLED),
        (("train.csv", "train.parquet.gz"), LABELLED),
        (("a.en.jsonl", "a.en.jsonl.GZ"), None),
        (("book.jsonl", "book.txt"), None),
    ],
)
def test_one_name_in_two_formats_is_refused(tmp_path, names, rows):
    (tmp_path / "data").mkdir()
    for name in names:
        put(tmp_path / "data" / name, b"x")
    with pytest.raises(ProjectError) as refusal:
        open_corpus(DatasetConfig(path=str(tmp_path)), rows)
    assert refusal.value.place == str(tmp_path / "data")
    assert refusal.value.message == f"holds both {names[0]} and {names[1]}, which differ only in format"


def test_names_that_differ_in_more_than_their_format_are_read(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("a.1.jsonl", "a.2.tsv", "a.jsonl", "b/a.tsv"):
        put(tmp_path / name, b"x")
    assert len(open_corpus(DatasetConfig(path=str(tmp_path)), LABELLED).train.files) == 4


TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        ("a.jsonl", {"messages": TURNS}, NESTED),
        (
            "a.json",
            [{"id": "1", "turns": ["a"]}],
            f"{NESTED}; or set dataset.text_column to one of the columns: 'id'",
        ),
        ("a.jsonl", {"body": "x", "n": {"k": 1}}, "set dataset.text_column to one of the columns: 'body'"),
        (
            "a.jsonl",
            {"chosen": "a", "rejected": "b"},
            "TRL trains on preferences; here, set dataset.text",
        ),
        ("a.jsonl", {}, "correct or remove the row"),
    ],
)
def test_the_hint_for_a_missing_column_names_only_what_can_be_read(tmp_path, name, content, hint):
    error = refused(put(tmp_path / name, json.dumps(content).encode()), "DAT011", "none of the columns")
    assert hint in error.hint
    assert "columns: 'messages'" not in error.hint


def test_parquet_columns_of_one_name_are_refused(tmp_path):
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, ["text", "text"]), tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", "DAT011", "several columns are named 'text'")
    with pytest.raises(ProjectError, match="several columns are named 'text'"):
        next(iter(read_table(tmp_path / "a.parquet")))
    pq.write_table(pa.table({"turns": [["a"]], "n": [1]}), tmp_path / "b.parquet")
    hint = refused(tmp_path / "b.parquet", "DAT011", "none of the columns").hint
    assert hint == NESTED
