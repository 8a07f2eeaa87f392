"""Readers of GLUE's files, and the counts that decide whether scores compare."""

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neobert.errors import ProjectError
from neobert.evaluation.glue.files import prepare_task
from neobert.evaluation.glue.task import has_published_size, reasons_not_comparable
from neobert.evaluation.glue.tasks import TASKS
from tests.refusals import refusal_of

GLUE = os.environ.get("NEOBERT_GLUE")


def rows_of(folder: Path, split: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def prepared(name: str, data: Path, output: Path) -> dict[str, object]:
    return prepare_task(TASKS[name], data, output)


def written(folder: Path, train: str, dev: str, suffix: str = ".tsv") -> Path:
    folder.mkdir(parents=True)
    (folder / f"train{suffix}").write_text(train, encoding="utf-8")
    (folder / f"dev{suffix}").write_text(dev, encoding="utf-8")
    return folder.parent


def test_a_headless_file_keeps_its_quotes_and_its_first_row(glue_data, tmp_path):
    report = prepared("cola", glue_data, tmp_path / "out")
    rows = rows_of(tmp_path / "out", "train")
    assert (report["train"]["rows"], len(rows)) == (48, 48)
    assert all(str(row["text"]).startswith('"') for row in rows)
    assert report["train"]["labels"].keys() == {"acceptable", "unacceptable"}


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
def test_a_label_has_one_column(tmp_path, suffix):
    (tmp_path / "RTE").mkdir()
    separator = {"tsv": "\t", "csv": ","}[suffix]
    lines = (("sentence1", "sentence2", "label", "label"), ("a", "b", "entailment", "not_entailment"))
    for split in ("train", "dev"):
        content = "".join(separator.join(line) + "\n" for line in lines)
        (tmp_path / "RTE" / f"{split}.{suffix}").write_text(content)
    with pytest.raises(ProjectError, match="several columns are named 'label'"):
        prepare_task(TASKS["rte"], tmp_path, tmp_path / "out")


def test_a_byte_order_mark_is_no_part_of_a_column(glue_data, tmp_path):
    report = prepared("rte", glue_data, tmp_path / "out")
    assert report["dev"]["rows"] == 16
    assert rows_of(tmp_path / "out", "dev")[0].keys() == {"text", "pair", "label"}


def test_a_sample_is_read_and_marked(glue_data, tmp_path):
    report = prepared("mnli", glue_data, tmp_path / "out")
    assert report["dev"]["source"] == "MNLI_sample/heldout_from_train.json"
    reasons = reasons_not_comparable(TASKS["mnli"], report["train"]["rows"], report["dev"]["rows"])
    assert reasons == [
        "the training set has 48 texts (published: 392,702)",
        "the development set has 16 texts (published: 9,815)",
    ]


@pytest.mark.parametrize(
    ("train", "dev", "num_reasons"),
    [(8_551, 1_043, 0), (8_540, 1_042, 0), (8_533, 1_043, 1), (8_600, 1_043, 1), (1_043, 8_551, 2)],
)
def test_each_split_is_compared_with_its_own_size(train, dev, num_reasons):
    """Mutants that compare with another bound, or with the other split, fail here."""
    assert len(reasons_not_comparable(TASKS["cola"], train, dev)) == num_reasons
    assert [has_published_size(rows, 500) for rows in (498, 499, 501, 502)] == [False, True, True, False]


def test_the_published_development_set_comes_before_a_held_out_one(tmp_path):
    rows = "index\tquestion\tsentence\tlabel\n0\tq\ts\tentailment\n"
    data = written(tmp_path / "glue" / "QNLI_sample", rows, rows)
    (data / "QNLI_sample" / "dev.tsv").rename(data / "QNLI_sample" / "heldout.tsv")
    (data / "QNLI").mkdir()
    (data / "QNLI" / "dev.tsv.gz").write_bytes(gzip.compress(rows.encode()))
    report = prepared("qnli", data, tmp_path / "out")
    assert [report[split]["source"] for split in ("train", "dev")] == [
        "QNLI_sample/train.tsv",
        "QNLI/dev.tsv.gz",
    ]
    assert rows_of(tmp_path / "out", "dev") == [{"text": "q", "pair": "s", "label": "entailment"}]


@pytest.mark.parametrize("name", ["train.jsonl", "dev.tsv.gz"])
def test_one_name_in_two_formats_is_refused(tmp_path, name):
    rows = "sentence\tlabel\ngood\t1\n"
    data = written(tmp_path / "glue" / "SST-2", rows, rows)
    (data / "SST-2" / "test.jsonl").write_text("{}")
    (data / "SST-2" / "test.tsv").write_text(rows)
    prepared("sst2", data, tmp_path / "out")
    (data / "SST-2" / name).write_bytes(b"x")
    message = f"holds both {' and '.join(sorted([name, name.partition('.')[0] + '.tsv']))}"
    refusal_of(prepared, "DAT001", message, "sst2", data, tmp_path / "out")


@pytest.mark.parametrize(
    ("split", "name"),
    [
        ("train", "train_more.tsv"),
        ("train", "sample_train.jsonl"),
        ("train", "train-00000-of-00002.tsv"),
        ("dev", "validation.tsv"),
    ],
)
def test_several_names_of_one_split_are_refused(tmp_path, split, name):
    rows = "sentence\tlabel\ngood\t1\n"
    data = written(tmp_path / "glue" / "SST-2", rows, rows)
    (data / "SST-2" / name).write_text(rows)
    with pytest.raises(ProjectError) as refusal:
        prepared("sst2", data, tmp_path / "out")
    names = ", ".join(sorted([f"SST-2/{split}.tsv", f"SST-2/{name}"]))
    assert refusal.value.message == f"task sst2 has several {split} files: {names}"
    hint = "keep one of the names: remove or rename the other files (shards: NAME-00000-of-00002)"
    assert (refusal.value.hint, refusal.value.exit_code) == (hint, 2)


def test_shards_are_one_file_and_a_whole_folder_comes_before_a_sample(tmp_path):
    row = "sentence\tlabel\ngood\t1\n"
    data = written(tmp_path / "glue" / "sst-2", row, row)
    written(data / "SST-2_sample", row, row)
    (data / "sst-2" / "train.tsv").rename(data / "sst-2" / "train-00000-of-00002.tsv")
    (data / "sst-2" / "train-00001-of-00002.tsv").write_text(row)
    report = prepared("sst2", data, tmp_path / "out")
    assert [report[split]["source"] for split in ("train", "dev")] == [
        "sst-2/train-00000-of-00002.tsv, sst-2/train-00001-of-00002.tsv",
        "sst-2/dev.tsv",
    ]


def test_copies_of_development_texts_are_counted_whatever_their_case_and_spaces(tmp_path):
    train = "sentence\tlabel\nA  good film ?\t1\nbad\t0\n"
    data = written(tmp_path / "glue" / "SST-2", train, "sentence\tlabel\na good FILM? \t0\nother\t1\n")
    assert prepared("sst2", data, tmp_path / "out")["dev"]["in_train"] == 1


def test_a_pair_is_a_copy_only_as_a_pair(tmp_path):
    header = "index\tsentence1\tsentence2\tlabel\n"
    data = written(
        tmp_path / "glue" / "RTE", f"{header}0\ta\tb\tentailment\n", f"{header}0\ta\tc\tentailment\n"
    )
    assert prepared("rte", data, tmp_path / "out")["dev"]["in_train"] == 0


def test_rows_without_a_label_or_with_missing_fields_are_counted(tmp_path):
    header = "sentence1\tsentence2\tgold_label\n"
    train = f"{header}a\tb\tneutral\na\tb\t-\nbroken\n"
    data = written(tmp_path / "glue" / "SNLI", train, f"{header}c\td\tentailment\n")
    report = prepared("snli", data, tmp_path / "out")["train"]
    assert (report["rows"], report["unlabelled"], report["malformed"]) == (1, 1, 1)


def test_scores_and_numbers_of_classes_in_parquet(tmp_path):
    for name, labels in (("stsb", [2.5, 5.0]), ("mrpc", [1, 0])):
        folder = tmp_path / "glue" / name
        folder.mkdir(parents=True)
        table = pa.table({"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": labels})
        for split in ("train", "validation"):
            pq.write_table(table, folder / f"{split}-00000.parquet")
    prepared("stsb", tmp_path / "glue", tmp_path / "stsb")
    prepared("mrpc", tmp_path / "glue", tmp_path / "mrpc")
    assert [row["label"] for row in rows_of(tmp_path / "stsb", "dev")] == [2.5, 5.0]
    assert [row["label"] for row in rows_of(tmp_path / "mrpc", "dev")] == ["equivalent", "not_equivalent"]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("sentence\tlabel\ngood\t2\n", r"label '2' is unknown \(labels: negative, positive, or 0 to 1\)"),
        ("sentence\tlabel\ngood\tgreat\n", r"label 'great' is unknown"),
        ("words\tlabel\ngood\t1\n", r"first line does not name the columns of task sst2"),
        ("sentence\tlabel\n", r"has no labelled rows"),
    ],
)
def test_what_no_task_has_is_refused_with_its_place(tmp_path, train, message):
    data = written(tmp_path / "glue" / "SST-2", train, "sentence\tlabel\nfine\t1\n")
    with pytest.raises(ProjectError, match=message) as refusal:
        prepared("sst2", data, tmp_path / "out")
    assert "train.tsv" in refusal.value.place


def test_a_file_whose_rows_are_all_skipped_counts_them(tmp_path):
    """CoLA needs no header, so another header is a row with too few fields."""
    data = written(tmp_path / "glue" / "CoLA", "gj04\t1\t\tfine\n", "sentence\ttag\nfine\t1\n")
    with pytest.raises(
        ProjectError, match="no labelled rows, 2 rows with missing or extra fields"
    ) as refusal:
        prepared("cola", data, tmp_path / "out")
    assert "source, label, note, sentence" in refusal.value.hint
    data = written(tmp_path / "glue" / "SST-2", "sentence\tlabel\nfine\t1\n", "sentence\tlabel\nfine\t-1\n")
    with pytest.raises(ProjectError, match="has no labelled rows, 1 row without a label"):
        prepared("sst2", data, tmp_path / "out")


def test_a_missing_split_is_named(glue_data, tmp_path):
    (glue_data / "RTE" / "dev.tsv").unlink()
    refusal_of(prepared, "glue-files", "task rte has no dev file", "rte", glue_data, tmp_path / "out")


@pytest.mark.skipif(GLUE is None, reason="NEOBERT_GLUE names a folder with real GLUE files")
@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "stsb", "rte", "wnli"])
def test_published_files_are_whole(name, tmp_path):
    report = prepared(name, Path(str(GLUE)), tmp_path / "out")
    assert reasons_not_comparable(TASKS[name], report["train"]["rows"], report["dev"]["rows"]) == []
    assert report["train"]["malformed"] == report["dev"]["malformed"] == 0


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("score", "nan", r"score 'nan' is not a finite number"),
        ("score", "-Infinity", r"score '-Infinity' is not a finite number"),
        ("score", "good", r"score 'good' is not a finite number"),
        ("sentence1", ["a"], r"column 'sentence1' holds a list, not text"),
        ("sentence2", 5, r"column 'sentence2' holds a number, not text"),
    ],
)
def test_what_is_no_score_and_no_text_is_refused_with_its_line(tmp_path, column, value, message):
    row = {"sentence1": "a", "sentence2": "b", "score": 2.5}
    lines = "".join(json.dumps(each) + "\n" for each in (row, {**row, column: value}))
    data = written(tmp_path / "data" / "STS-B", lines, lines, ".jsonl")
    error = refusal_of(prepared, "glue-files", message, "stsb", data, tmp_path / "out")
    assert error.place.endswith("train.jsonl:2")
