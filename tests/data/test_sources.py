import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config.corpora import BUILDER_NAMES
from neobert.config.schema import DatasetConfig
from neobert.data.sources import python_docs
from neobert.data.sources.corpus import Corpus, open_corpus
from neobert.data.sources.file_listing import resolve_paths
from neobert.data.sources.file_selection import select_files
from neobert.data.sources.parts import HashShare, SlicedSource, known_count
from neobert.data.sources.readers import IndexedSource, TextSource
from neobert.data.sources.splits import parse_split
from neobert.errors import ProjectError
from tests.data.conftest import format_of, rows_of, sentences, write_jsonl
from tests.refusals import refusal_of

TEXTS = [f"document {number}" for number in range(20)]


def corpus(path: object, **options: object) -> Corpus:
    return open_corpus(DatasetConfig(path=str(path), **options))


def texts(source: TextSource | None) -> list[str] | None:
    return None if source is None else [row["text"] for row in source.open()]


def refused(code: str, says: str, **options: object) -> ProjectError:
    error = refusal_of(lambda: list(open_corpus(DatasetConfig(**options))), code, says)
    assert error.place
    return error


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Training text of two kinds, three levels deep, a validation file and a test folder."""
    write_jsonl(tmp_path / "b.jsonl", ["b0", "b1"])
    (tmp_path / "a.txt").write_text("a0\n\na1\n", encoding="utf-8")
    write_jsonl(tmp_path / "deep" / "er" / "train-00001.jsonl", ["d0"])
    write_jsonl(tmp_path / "valid.jsonl", ["v0"])
    write_jsonl(tmp_path / "Test" / "part.jsonl", ["t0"])
    write_jsonl(tmp_path / ".hidden" / "x.jsonl", ["hidden"])
    (tmp_path / "README.md").write_text("no data", encoding="utf-8")
    return tmp_path


def test_a_folder_is_read_in_order_and_sorted_into_splits(folder):
    found = corpus(folder)
    assert texts(found.train) == ["a0", "a1", "b0", "b1", "d0"]
    assert texts(found.evaluation) == ["v0"]
    assert texts(corpus(folder, eval_split="test").evaluation) == ["t0"]
    assert texts(corpus(folder, train_split="test").train) == ["t0"]


def test_a_split_that_is_not_there_is_an_error_that_lists_those_that_are(folder):
    error = refused("DAT001", "no split 'dev'", path=str(folder), eval_split="dev")
    assert error.place == "dataset.eval_split"
    assert "test, train, validation" in error.hint
    (only := folder / "only").mkdir()
    write_jsonl(only / "valid.jsonl", ["x"])
    assert "validation" in refused("DAT001", "no split 'train'", path=str(only)).hint


def test_one_file_is_training_text_whatever_its_name(tmp_path):
    path = write_jsonl(tmp_path / "test.jsonl", ["x"])
    assert texts(corpus(path).train) == ["x"]


@pytest.mark.parametrize(
    ("options", "train", "evaluation"),
    [
        ({}, TEXTS, None),
        ({"train_split": "train[:10%]"}, TEXTS[:2], None),
        ({"train_split": "train[5:8]"}, TEXTS[5:8], None),
        ({"train_split": "train[-3:]"}, TEXTS[-3:], None),
        ({"eval_samples": 4}, TEXTS[4:], TEXTS[:4]),
        ({"train_split": "train[10:]", "eval_samples": 2}, TEXTS[12:], TEXTS[10:12]),
        ({"train_split": "train[4:]", "eval_split": "train[:4]"}, TEXTS[4:], TEXTS[:4]),
        ({"train_split": "train[4:]", "eval_split": "train[:4]", "eval_samples": 1}, TEXTS[4:], TEXTS[:1]),
    ],
)
def test_slices_and_held_out_documents(tmp_path, options, train, evaluation):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    found = corpus(path, **options)
    assert texts(found.train) == train
    assert texts(found.evaluation) == evaluation


@given(st.lists(st.text(max_size=5), max_size=60), st.floats(0.05, 0.95))
def test_a_share_by_hash_keeps_copies_together_and_loses_nothing(documents, share):
    source = IndexedSource(
        "x", lambda a, b: rows_of(documents[a:b]), lambda: len(documents), list, format_of()
    )
    train, held_out = (texts(HashShare(source, share, is_evaluation=side)) for side in (False, True))
    assert sorted([*train, *held_out]) == sorted(documents)
    assert not set(train) & set(held_out)


def test_a_share_by_hash_has_its_size(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", sentences(4000))
    found = corpus(path, validation_split=0.1)
    assert len(texts(found.evaluation)) == pytest.approx(400, abs=80)


@pytest.mark.parametrize(
    ("train", "evaluation"),
    [("train", "train"), ("train", "train[:5]"), ("train[3:]", "train[:4]"), ("train[:50%]", "train[9:]")],
)
def test_training_documents_cannot_evaluate(tmp_path, train, evaluation):
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    refused("DAT006", "documents overlap", path=str(path), train_split=train, eval_split=evaluation)


SOURCES = ["file", "slice", "share", "indexed", "share of a slice"]


def some_source(kind: str, folder: Path) -> TextSource:
    for number in range(3):
        write_jsonl(folder / f"{number}.jsonl", TEXTS[number * 5 : number * 5 + 5])
    files = corpus(folder).train
    indexed = IndexedSource("x", lambda a, b: rows_of(TEXTS[a:b]), lambda: len(TEXTS), list, format_of())
    return {
        "file": files,
        "slice": SlicedSource(files, parse_split("x[3:12]", "key")),
        "share": HashShare(files, 0.5, is_evaluation=True),
        "indexed": indexed,
        "share of a slice": SlicedSource(
            HashShare(indexed, 0.7, is_evaluation=False), parse_split("x[1:9]", "key")
        ),
    }[kind]


@pytest.mark.parametrize("kind", SOURCES)
def test_reading_goes_on_where_a_state_says(tmp_path, kind):
    source = some_source(kind, tmp_path)
    whole = texts(source)
    assert len(whole) > 3
    reader = source.open()
    for taken in range(len(whole)):
        assert [row["text"] for row in source.open(reader.state())] == whole[taken:]
        assert next(reader)["text"] == whole[taken]
    assert list(source.open(reader.state())) == []


@pytest.mark.parametrize("kind", ["file", "slice", "indexed"])
def test_counts_are_what_is_read(tmp_path, kind):
    source = some_source(kind, tmp_path)
    assert source.count() == len(texts(source))


def test_a_saved_dataset_without_its_library_names_the_package(tmp_path, monkeypatch):
    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk(tmp_path / "saved")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert refusal_of(corpus, "DAT001", "datasets", tmp_path / "saved").hint == "pip install 'datasets>=5.2'"


def test_saved_datasets(tmp_path):
    splits = datasets.DatasetDict(
        train=datasets.Dataset.from_dict({"sentence": TEXTS, "id": list(range(20))}),
        dev=datasets.Dataset.from_dict({"sentence": ["e"], "id": [0]}),
    )
    splits.save_to_disk(tmp_path / "splits")
    found = corpus(tmp_path / "splits", train_split="train[:5]")
    assert (texts(found.train), texts(found.evaluation)) == (TEXTS[:5], ["e"])
    assert found.train.column == "sentence"
    splits["train"].save_to_disk(tmp_path / "single")
    assert texts(corpus(tmp_path / "single").train) == TEXTS
    refused("DAT011", "no column 'text'", path=str(tmp_path / "single"), text_column="text")
    error = refused("DAT011", "holds a number", path=str(tmp_path / "single"), text_column="id")
    assert error.place == f"{tmp_path / 'single'} (train), row 1"
    (tmp_path / "single" / "state.json").write_text("{", encoding="utf-8")
    refused("DAT001", "cannot be opened", path=str(tmp_path / "single"))


def test_a_name_that_datasets_cannot_find():
    refused("DAT001", "cannot be opened", name="nobody/nothing-of-this-name")


def test_the_name_of_a_format_reads_no_file_of_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "stray.json", TEXTS)
    for name in ("json", "csv", "parquet", "text"):
        error = refused("DAT013", f"dataset.name {name} is a file format", name=name)
        assert "dataset.path" in error.hint


def test_the_names_of_formats_are_those_of_the_library():
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    assert set(_PACKAGED_DATASETS_MODULES) <= BUILDER_NAMES


def test_bad_places(tmp_path):
    refused("DAT001", "does not exist", path=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    refused("DAT001", "found nothing", path=str(tmp_path / "empty"))
    (tmp_path / "empty" / "a.xyz").write_text("x", encoding="utf-8")
    refused("DAT001", "1 x .xyz", path=str(tmp_path / "empty"))
    refused("DAT001", "is not in a supported format (.txt", path=str(tmp_path / "empty" / "a.xyz"))
    (tmp_path / "a.txt").touch()
    refused("DAT004", "is empty", path=str(tmp_path / "a.txt"))
    refused("DAT013", "neither dataset.path nor dataset.name")
    two = refused("DAT013", "dataset.path x and dataset.name y are both set", path="x", name="y")
    assert two.hint == "remove dataset.path or dataset.name"
    refused("DAT001", "unknown corpus 'builtin:novels'", name="builtin:novels")


def test_an_unset_variable_of_the_shell_is_not_the_current_folder(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "a.jsonl", ["x"])
    monkeypatch.chdir(tmp_path)
    assert refused("DAT001", "is empty", path="").place == "dataset.path"
    assert texts(corpus(".").train) == ["x"]


def test_what_a_folder_holds_besides_is_named(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["x"])
    assert corpus(tmp_path).label == f"{tmp_path} (train, 1 file)"
    for name in ("b.html", "c.html", "d.csv"):
        path.with_name(name).write_text("x\ny\n", encoding="utf-8")
    (tmp_path / "e.jsonl").touch()
    assert corpus(tmp_path).label == f"{tmp_path} (train, 1 file; not read: 2 x .html, 1 x .csv, 1 x empty)"


@pytest.mark.parametrize("name", ["b.jsonl.gz", "b.parquet"])
def test_a_file_of_no_bytes_that_cannot_be_whole_is_refused(tmp_path, name):
    write_jsonl(tmp_path / "a.jsonl", ["x"])
    (tmp_path / name).touch()
    assert refused("DAT001", "is truncated: 0 bytes", path=str(tmp_path)).place == str(tmp_path / name)


def test_links_are_followed_and_dead_ones_named(tmp_path):
    write_jsonl(tmp_path / "elsewhere" / "deep" / "b.jsonl", ["linked"])
    here = write_jsonl(tmp_path / "here" / "a.jsonl", ["own"]).parent
    (here / "shards").symlink_to(tmp_path / "elsewhere")
    (here / "loop").symlink_to(here)
    assert texts(corpus(here).train) == ["own", "linked"]
    (here / "dead.jsonl").symlink_to(tmp_path / "gone.jsonl")
    assert refused("DAT001", "broken link", path=str(here)).place == str(here / "dead.jsonl")


def test_what_a_run_writes_below_its_text_is_no_text(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", ["own"])
    run = write_jsonl(tmp_path / "runs" / "first" / "metrics.jsonl", ["a line of metrics"]).parent
    assert texts(corpus(tmp_path).train) == ["own", "a line of metrics"]
    for name in ("resolved.json", "manifest.json"):
        (run / name).write_text("{}", encoding="utf-8")
    assert texts(corpus(tmp_path).train) == ["own"]
    assert texts(corpus(run).train) == ["a line of metrics"]
    cache = write_jsonl(tmp_path / "cache" / "0123" / "manifest.jsonl", ["a manifest"]).parent
    assert texts(corpus(tmp_path).train) == ["own", "a manifest"]
    for name in ("manifest.json", "train.tokens"):
        (cache / name).write_text("{}", encoding="utf-8")
    assert texts(corpus(tmp_path).train) == ["own"]


def test_a_stream_has_no_percent(tmp_path):
    path = str(write_jsonl(tmp_path / "a.jsonl", TEXTS))
    refused("DAT001", "percentages or negative numbers", path=path, streaming=True, train_split="train[:1%]")
    refused("DAT001", "percentages or negative numbers", path=path, streaming=True, train_split="train[-5:]")


def test_the_documentation_of_python_is_read_without_running_it():
    script = (
        "import json, sys; from neobert.data.sources.python_docs import python_docs;"
        "before = set(sys.modules);"
        "documents = [text for text, _ in python_docs()];"
        "print(json.dumps([documents, sorted(set(sys.modules) - before)]))"
    )
    child = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    documents, modules = json.loads(child.stdout)
    roots = {name.partition(".")[0] for name in modules}
    assert {root for root in roots if not root.startswith("_sysconfigdata")} <= {"pydoc_data", "encodings"}
    assert len(documents) == len(set(documents))
    assert sum(map(len, documents)) > 1_000_000
    long = [place for place, document in enumerate(documents) if len(document) > 5000]
    assert len(documents) / 3 < sum(long) / len(long) < len(documents) * 2 / 3, (
        "topics are spread over the corpus"
    )
    assert "topics" in python_docs.python_docs_label()


def test_a_python_without_topics_says_so(monkeypatch):
    monkeypatch.setattr(python_docs, "find_spec", lambda name: None)
    monkeypatch.setattr(
        python_docs, "_docstrings", lambda root: iter([("only", "class"), ("docstrings", "module")])
    )
    assert sorted(python_docs.python_docs()) == [("docstrings", "module"), ("only", "class")]
    assert "no pydoc_data" in open_corpus(DatasetConfig(name=python_docs.NAME)).label
    monkeypatch.setattr(python_docs, "_docstrings", lambda root: iter(()))
    refused("DAT001", "neither pydoc_data nor", name=python_docs.NAME)


def test_sources_that_do_not_parse_are_left_out(tmp_path):
    (tmp_path / "good.py").write_text('"""Good."""\nclass A:\n    """A."""\n', encoding="utf-8")
    (tmp_path / "bad.py").write_bytes(b'"""Bad."""\nprint "2"\n')
    (tmp_path / "latin.py").write_bytes(b'# -*- coding: latin-1 -*-\n"""Caf\xe9."""\n')
    (tmp_path / "escape.py").write_text('"""An \\d escape."""\n', encoding="utf-8")
    (tmp_path / "half.py").write_text('"""Half \\ud800."""\n', encoding="utf-8")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_x.py").write_text('"""Test."""\n', encoding="utf-8")
    assert [text for text, _ in python_docs._docstrings(tmp_path)] == [
        "An \\d escape.",
        "Good.",
        "A.",
        "Half ?.",
        "Café.",
    ]


NESTED = """
if True:
    def one(): "In if."
elif False:
    def two(): "In elif."
try:
    class Three: "In try."
except ValueError:
    async def four(): "In except."
else:
    def five(): "In else."
finally:
    def six(): "In finally."
with open("x"):
    for _ in ():
        def seven():
            match 1:
                case _:
                    def eight(): "In case."
"""


def test_a_definition_in_any_statement_is_read(tmp_path):
    (tmp_path / "nested.py").write_text(NESTED, encoding="utf-8")
    places = ("if", "elif", "try", "except", "else", "finally", "case")
    assert {text for text, _ in python_docs._docstrings(tmp_path)} == {f"In {place}." for place in places}


def test_a_source_that_was_read_whole_knows_its_length(tmp_path):
    """The progress of a preparation has a total where that costs no second reading."""
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    train = corpus(path, eval_samples=5).train
    assert known_count(train) is None
    reader = train.open()
    for _ in range(8):
        next(reader)
    assert known_count(train) is None
    list(train.open(reader.state()))
    assert known_count(train) is None, "the rest alone is no length"
    list(train.open())
    assert known_count(train) == train.count() == 15


def test_a_source_with_an_index_knows_its_length():
    source = IndexedSource("x", lambda *_: (), lambda: 7, lambda: None, format_of("text"))
    assert known_count(source) == 7
    assert known_count(HashShare(source, 0.5, is_evaluation=True)) is None


def mixed_folder(root: Path) -> Path:
    """Text in every format, and files that are not read for a reason each."""
    write_jsonl(root / "b.jsonl", ["jsonl"])
    for name, content in {
        "a.txt": "txt",
        "c.csv": "id,text\n1,csv\n",
        "d.tsv": "text\tid\ntsv\t1\n",
        "e.md": "# markdown",
        "f.json": '[{"text": "json"}]',
        "README.md": "# About",
        "table.csv": "id,body\n1,lost\n",
        "semicolons.csv": "id;text\n1;semicolons\n",
        "package.json": '{\n  "name": "x"\n}\n',
        "header.csv": "text\n",
        "page.html": "<p>",
        "empty.txt": "",
    }.items():
        (root / name).write_text(content, encoding="utf-8")
    os.mkfifo(root / "pipe.txt")
    return root


def test_a_mixed_folder_is_read_where_the_text_column_is_known(tmp_path):
    found = corpus(mixed_folder(tmp_path))
    assert texts(found.train) == ["txt", "jsonl", "csv", "tsv", "# markdown", "json", "semicolons"]
    left = "2 x empty, 1 x .csv, 1 x .html, 1 x .json, 1 x FIFO"
    assert found.label == f"{tmp_path} (train, 7 files; not read: {left})"


def test_what_is_left_out_has_a_reason_and_a_way_out(tmp_path):
    selection = select_files(resolve_paths([str(mixed_folder(tmp_path))]), format_of())
    reasons = {each.example: (each.reason, each.hint) for each in selection.left_out.values() if each.reason}
    assert set(reasons) == {"page.html", "table.csv"}
    assert reasons["table.csv"] == (
        "none of the columns is named text, sentence, content",
        "list these files in dataset.mixture, with a text_column of their own",
    )
    (tmp_path / "b.jsonl").unlink()  # then one column name suits all tables that are left
    others = select_files(resolve_paths([str(tmp_path)]), format_of()).left_out.values()
    hints = {each.example: each.hint for each in others}
    assert hints["table.csv"] == "set dataset.text_column to one of the columns: 'id', 'body'"


def test_patterns_and_lists_are_read_as_a_folder_with_their_files_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("novels/a.txt", "novels/b[1].txt", "novels/c.log", "train/x.txt", "test/y.txt"):
        path = Path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(name, encoding="utf-8")
    assert texts(corpus("novels/*.txt").train) == ["novels/a.txt", "novels/b[1].txt"]
    assert texts(corpus("novels/b[1].txt").train) == ["novels/b[1].txt"], "an existing path is no pattern"
    assert corpus("novels/*").label == "novels/* (train, 2 files; not read: 1 x .log)"
    both = open_corpus(DatasetConfig(path=("train", "test", "novels/a.txt", "novels")))
    assert texts(both.train) == ["novels/a.txt", "novels/b[1].txt", "train/x.txt"]
    assert texts(both.evaluation) == ["test/y.txt"]
    assert texts(corpus("t*/*.txt").evaluation) == ["test/y.txt"]
    refused("DAT001", "matches no file", path="novels/*.md")
    datasets.Dataset.from_dict({"text": ["x"]}).save_to_disk("saved")
    assert "dataset.mixture" in refused("DAT001", "is a saved dataset", path=("train", "saved")).hint
    refused("DAT001", "is not read", path=("train", "novels/c.log"))


def test_a_pattern_that_is_moved_is_the_same_text(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("x", encoding="utf-8")
    before = corpus(tmp_path / "a" / "*.txt").train.identity()
    (tmp_path / "a").rename(tmp_path / "b")
    assert corpus(tmp_path / "b" / "*.txt").train.identity() == before


def test_each_line_can_be_a_document(tmp_path):
    path = tmp_path / "a.md"
    path.write_bytes("\ufeffone\r\n\r\n two \r\nthree".encode())
    lines = corpus(path, document_per_line=True)
    assert texts(lines.train) == ["one", " two ", "three"]
    assert lines.train.rows.identity() != corpus(path).train.rows.identity()
