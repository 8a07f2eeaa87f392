"""Columns, classes and scores inferred from tables, as people have them."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neobert.data.sources.pair_columns import parse_score
from neobert.errors import ProjectError
from neobert.tasks import labelled_table, table_files
from neobert.tasks.classification.inferred import infer as classified
from neobert.tasks.contrastive.inferred import infer as paired
from neobert.tasks.multiple_choice.inferred import infer as chosen
from neobert.tasks.question_answering.inferred import infer as requested
from neobert.tasks.sft.inferred import infer as conversed
from neobert.tasks.token_classification.inferred import infer as tagged
from tests.refusals import refusal_of

TEXTS = [f"a text of {number} words, more or less" for number in range(40)]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name: str, columns: Mapping[str, Sequence[Any]]) -> Path:
    path = Path(name)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), path)
    else:
        mark = {".csv": ",", ".tsv": "\t"}[path.suffix]
        quote = '"' if path.suffix == ".csv" else ""
        lines = [[*columns], *([f"{quote}{row[each]}{quote}" for each in columns] for row in rows)]
        path.write_text("\n".join(mark.join(line) for line in lines), encoding="utf-8")
    return path


def of(values: Sequence[Any]) -> list[Any]:
    return [values[number % len(values)] for number in range(len(TEXTS))]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"text": TEXTS, "label": of([0, 1])}, {"label_names": ["0", "1"]}),
        ({"text": TEXTS, "label": of(["0", "1", "1.0"])}, {"num_labels": 2}),
        ({"text": TEXTS, "label": of([True, False])}, {"label_names": ["False", "True"]}),
        ({"text": TEXTS, "label": of([0, 1, 2])}, {"label_names": ["0", "1", "2"]}),
        ({"": range(40), "text": TEXTS, "label": of([0, 1])}, {"label_names": ["0", "1"]}),
        ({"text": TEXTS, "label": of([1, 2, 10])}, {"label_names": ["1", "2", "10"]}),
        ({"text": TEXTS, "label": of(["b", "a"])}, {"label_names": ["a", "b"]}),
        ({"text": TEXTS, "score": of([0.5, 4.25])}, {"label_column": "score", "problem": "regression"}),
        (
            {"id": range(40), "Body": TEXTS, "Sentiment": of(["bad", "good"])},
            {"text_column": "Body", "label_column": "Sentiment", "label_names": ["bad", "good"]},
        ),
        (
            {"id": range(40), "q": TEXTS, "kind": of(["x", "y", "z"])},
            {"text_column": "q", "label_column": "kind", "label_names": ["x", "y", "z"]},
        ),
        (
            {"sentence1": TEXTS, "sentence2": TEXTS[::-1], "label": of([0, 1])},
            {"pair_column": "sentence2", "label_names": ["0", "1"]},
        ),
        (
            {"#1 ID": range(40), "#1 String": TEXTS, "#2 String": TEXTS[::-1], "Quality": of([1, 0])},
            {
                "text_column": "#1 String",
                "pair_column": "#2 String",
                "label_column": "Quality",
                "label_names": ["0", "1"],
            },
        ),
        (
            {"premise": TEXTS, "hypothesis": TEXTS, "label": of(["yes", "no", "maybe"])},
            {
                "text_column": "premise",
                "pair_column": "hypothesis",
                "label_names": ["maybe", "no", "yes"],
            },
        ),
    ],
)
def test_columns_and_labels_of_texts(name, columns, expected):
    table = classified(write(name, columns))
    keys = {key.rpartition(".")[2]: value for key, value in table.keys.items()}
    assert keys == {"label_column": "label", **expected}
    assert len(table.lengths) == len(TEXTS)
    assert table.notes[-1].startswith(f"label: column '{keys['label_column']}', ")


@pytest.mark.parametrize(
    ("labels", "is_noted"),
    [
        (["bill;refund", "bill", "refund;login", "login"], True),
        (["cat, black", "dog, white"], False),
        (["bill", "refund"], False),
        (["0,5", "0,25", "1,5"], False),
        (["1", "1,2", "2"], True),
        (["1,2,3", "1,2"], True),
    ],
)
def test_combinations_of_labels_are_noted(labels, is_noted):
    notes = classified(write("a.csv", {"text": TEXTS, "label": of(labels)})).notes
    assert any("looks like several labels" in note for note in notes) == is_noted


def test_a_class_of_one_row_is_noted():
    labels = ["happy", "unhappy", "calm"]
    noted = classified(write("a.csv", {"text": TEXTS, "label": [*of(labels)[:-1], "hapy"]})).notes
    assert "in one row only, perhaps misspelt: hapy" in noted
    notes = classified(write("b.csv", {"text": TEXTS, "label": of(labels)})).notes
    assert not any("in one row only" in each for each in notes)


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        (
            ["0,5", "0,25", "1,5"],
            "'0,25' is read as a name: scores have a decimal point, and no comma or unit",
        ),
        (["5%", "45%"], "'45%' is read as a name: scores have a decimal point, and no comma or unit"),
        (
            ["$1,250.00", "$90"],
            "'$1,250.00' is read as a name: scores have a decimal point, and no comma or unit",
        ),
        (["yes", "Yes", "no"], "classes that differ only in case or encoding: Yes, yes"),
        (
            ["caf\u00e9", "cafe\u0301", "tea"],
            "classes that differ only in case or encoding: cafe\u0301, caf\u00e9",
        ),
        (
            ["a", "NA", "b", "None"],
            "labels like missing values: NA, None; to leave out these rows, empty the label",
        ),
        (
            ["0.0", "1.0", "nan"],  # a number for Python, and no class
            "labels like missing values: nan; to leave out these rows, empty the label",
        ),
        (
            ["a", "label"],
            "column 'label' has its own name as a label: remove a repeated header line, or write one, such "
            "as text and label, if there is none",
        ),
    ],
)
def test_names_of_classes_that_may_be_a_mistake_are_noted(labels, note):
    notes = classified(write("a.csv", {"text": TEXTS, "label": of(labels)})).notes
    assert note in notes
    assert note not in classified(write("b.csv", {"text": TEXTS, "label": of(["1,5", "yes", "no"])})).notes


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ("{},5", "scores have a decimal point, and no comma or unit"),
        ("id-{}", "more than 500 different labels"),
    ],
)
def test_too_many_classes_are_refused(form, problem):
    rows = range(600)
    path = write(
        "a.csv", {"text": [f"text of {row}" for row in rows], "label": [form.format(row) for row in rows]}
    )
    refusal_of(classified, "unclear-table", problem, path)


@pytest.mark.parametrize(
    ("name", "numbers", "repeats", "found"),
    [
        ("label", range(77), 3, "77 classes: 0, 1, "),
        ("product_id", range(9000, 9600), 2, "600 classes: 9000, 9001, "),
        ("price", range(9000, 9600), 1, "scores from 9000 to 9599: regression; for classes: "),
        ("year", range(1950, 2020), 3, "scores from 1950 to 2019: regression; for classes: "),
        ("stars", range(1, 6), 9, "5 classes: 1, 2, 3, 4, 5; for scores: "),
    ],
)
def test_whole_numbers_that_repeat_are_classes(name, numbers, repeats, found):
    """A table of 77 numbered intents became a regression, and one of many ids too."""
    labels = [*numbers] * repeats
    path = write("a.csv", {"text": [f"text of {row}" for row in range(len(labels))], name: labels})
    note = classified(path, {"classification.label_column": name}).notes[-1]
    assert note.startswith(f"label: column '{name}', {found}")


@pytest.mark.parametrize(
    ("problem", "keys"),
    [
        ("regression", {"problem": "regression"}),
        ("classes", {"problem": "classes", "label_names": ["1", "2", "5"]}),
    ],
)
def test_the_problem_may_be_stated(problem, keys):
    path = write("a.csv", {"text": TEXTS, "stars": of([1, 2, 5])})
    found = classified(path, {"classification.problem": problem}).keys
    assert found == {
        f"classification.{key}": value for key, value in {"label_column": "stars", **keys}.items()
    }


def test_columns_may_be_named():
    table = {"body": TEXTS, "title": TEXTS[::-1], "rating": of([1, 2, 3]), "kind": of(["x", "y"])}
    path = write("a.csv", table)
    guessed = classified(path)
    assert guessed.keys["classification.label_names"] == ["1", "2", "3"]
    assert guessed.notes[-1] == (
        "other columns with few values: 'kind'; to choose one: --classification.label_column NAME"
    )
    stated = classified(path, {"classification.label_column": "kind", "dataset.text_column": "title"})
    assert stated.keys == {
        "dataset.text_column": "title",
        "classification.label_column": "kind",
        "classification.label_names": ["x", "y"],
    }
    pair = classified(path, {"classification.pair_column": "title"}).keys
    assert (pair["dataset.text_column"], pair["classification.pair_column"]) == ("body", "title")
    with pytest.raises(
        ProjectError, match=r"no column 'Kind' \(columns: 'body', 'title', 'rating', 'kind'\)"
    ):
        classified(path, {"classification.label_column": "Kind"})


def test_columns_of_other_tasks_may_be_named():
    path = write("a.jsonl", {"a": TEXTS, "b": TEXTS, "w": of([["x"]]), "v": of([["O"]]), "u": of([["B-p"]])})
    with pytest.raises(ProjectError) as refusal:
        paired(path)
    assert refusal.value.hint == "name the column of queries: --dataset.text_column NAME"
    pairs = {"dataset.text_column": "a", "contrastive.positive_column": "b"}
    assert paired(path, pairs).keys == {**pairs, "contrastive.max_negatives": 0}
    words = {"dataset.text_column": "w", "token_classification.label_column": "u"}
    assert tagged(path, words).keys == {**words, "token_classification.label_names": ["B-p"]}
    asks = {"question_answering.question_column": "a", "dataset.text_column": "b"}
    assert requested(path, asks | {"question_answering.answer_column": "w"}).keys.items() >= asks.items()


@pytest.mark.parametrize("names", [("A", "B", "C"), ("opa", "opb", "opc"), ("Option 1", "Option 2")])
def test_columns_of_one_choice_have_a_number_or_a_letter(names):
    columns = {"question": TEXTS, **dict.fromkeys(names, TEXTS), "answer": of(["A", "C"])}
    assert chosen(write("a.csv", columns)).keys == {
        "multiple_choice.choice_columns": list(names),
        "multiple_choice.max_choices": len(names),
        "multiple_choice.label_column": "answer",
    }


@pytest.mark.parametrize(
    ("names", "other"),
    [(("option1", "option2", "option3"), "E"), (("A", "B", "C"), "E"), (("A", "B", "C"), "sold")],
)
def test_a_column_that_does_not_follow_the_choices_is_no_choice(names, other):
    columns = {"question": TEXTS, **dict.fromkeys((*names, other), TEXTS), "answer": of([1, 2])}
    assert chosen(write("a.csv", columns)).keys["multiple_choice.choice_columns"] == list(names)


@pytest.mark.parametrize(
    ("name", "share"), [("a.csv", 0.25), ("a.jsonl", 0.25), ("a.parquet", 0.25), ("a.csv.gz", None)]
)
def test_the_share_of_the_rows_that_were_read_is_estimated(monkeypatch, name, share):
    monkeypatch.setattr(labelled_table, "MAX_ROWS", 10)
    questions = [f"{each}\nof two lines" for each in TEXTS]
    columns = {"question": questions, "A": TEXTS, "B": TEXTS, "answer": of([1, 2])}
    path = write(name.removesuffix(".gz"), columns)
    if name.endswith(".gz"):
        Path(name).write_bytes(gzip.compress(path.read_bytes()))
    table = chosen(Path(name))
    assert table.first_rows == 10, "rows, and not choices"
    assert table_files.read_share(Path(name), 10) == pytest.approx(share, abs=0.03)


def test_a_quote_that_encloses_nothing_does_not_make_the_share_of_the_rows_small():
    Path("a.csv").write_text("text,label\n" + 'a pipe of 5",a\n' + "another pipe,b\n" * 40, encoding="utf-8")
    assert table_files.read_share(Path("a.csv"), 10) == 1.0


def test_quotes_of_a_tsv_file_may_be_characters():
    texts = [f'"quoted text {number}' for number in range(40)]
    table = classified(write("a.tsv", {"sentence": texts, "label": of([0, 1])}))
    assert table.keys["dataset.tsv_quotes"] is False
    lines = [f'"a text\twith a tab {number}"\t{number % 2}' for number in range(40)]
    Path("b.tsv").write_text("\n".join(["sentence\tlabel", *lines]), encoding="utf-8")
    assert "dataset.tsv_quotes" not in classified(Path("b.tsv")).keys


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["B-PER", "O", "I-PER", "B-LOC"], ["O", "B-LOC", "B-PER", "I-PER"]),
        (["NOUN", "VERB"], ["NOUN", "VERB"]),
        ([0, 2], ["0", "1", "2"]),
    ],
)
def test_columns_and_labels_of_words(values, names):
    rows = {"id": range(40), "words": [["a"] * len(values)] * 40, "ner_tags": [values] * 40}
    table = tagged(write("a.jsonl", rows))
    assert table.keys == {"token_classification.label_names": names}
    lines = [f"a {value}" for value in values]
    Path("b.conll").write_text("\n".join([*lines, "", *lines]), encoding="utf-8")
    assert [*map(str, tagged(Path("b.conll")).keys["token_classification.label_names"])] == sorted(
        {*map(str, values)}, key=names.index
    )


SPANS = [{"text": ["met"], "answer_start": [4]}] * 30 + [{"text": [], "answer_start": []}] * 10


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        ({"context": TEXTS, "answers": SPANS}, {"question_answering.null_threshold": 0.0}),
        (
            {"passage": TEXTS, "answer_text": ["met"] * 40, "answer_start": [4] * 40},
            {
                "dataset.text_column": "passage",
                "question_answering.answer_column": "answer_text",
                "question_answering.start_column": "answer_start",
            },
        ),
    ],
)
def test_columns_of_questions(columns, keys):
    table = requested(write("a.jsonl", {"question": TEXTS, "id": range(40), **columns}))
    assert table.keys == keys
    assert len(table.lengths) == 40
    with pytest.raises(ProjectError, match=r"no column of questions found \(columns: 'text'"):
        requested(write("b.jsonl", {"text": TEXTS}))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"text": TEXTS, "a": of([0, 1]), "b": of([1, 0])}, "a run for each column: name the column"),
        ({"text": TEXTS, "id": range(40, 80)}, "no column holds the label (columns: 'text', 'id'"),
        ({"text": TEXTS, "name": TEXTS}, "no column holds the label (columns: 'text', 'name'"),
        ({"it was fine": TEXTS, "0": of([0, 1])}, "column names look like values"),
        ({"text": TEXTS, "label": of([0, 1]), "": of(["x"])}, "column names look like values"),
        ({"label": of([0, 1]), "other": of(["", ""])}, "no column holds the text"),
        ({"label": ["", *of([0, 1])], "text": ["a text", *of([""])]}, "no row has both a text and a label"),
        ({"text": TEXTS, "label": of(["pos"])}, "column 'label' has 1 class (at least 2)"),
        ({"text": TEXTS, "label": of([0])}, "column 'label' has 1 class"),
        ({"text": TEXTS, "label": of(["1", "1.0"])}, "column 'label' has 1 class"),
        (
            {"text": TEXTS, "label": of([None, ["pos"], {"a": "neg"}])},
            "'label' has lists, and a text has one class",
        ),
        ({"text": of([{"body": "some words"}]), "label": of([None, 0, 1])}, "column 'text' holds no text"),
        (
            {"text": TEXTS, "label": of([None, {"name": "pos"}])},
            "column 'label' holds neither text nor numbers",
        ),
    ],
)
def test_an_unclear_table_is_refused(columns, problem):
    path = write("a.jsonl" if None in columns.get("label", ()) else "a.csv", columns)
    with pytest.raises(ProjectError) as refusal:
        classified(path)
    assert problem in str(refusal.value)
    assert refusal.value.hint


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_texts_with_several_labels_are_noted(name):
    labels = of(["a", "b"])
    texts = ["same words", "same words ", *TEXTS[2:]]
    assert (
        "1 text with several labels; first: rows 1 and 2, the header not counted"
        in classified(write(name, {"text": texts, "label": labels})).notes
    )
    pairs = {"sentence1": texts, "sentence2": TEXTS, "label": labels}
    assert not any("several labels" in note for note in classified(write(f"b{name}", pairs)).notes)
    scores = {"text": texts, "label": of([0.5, 0.25, 0.75])}
    assert not any("several labels" in note for note in classified(write(f"c{name}", scores)).notes)
    missing = {"text": ["", "", "same", "same", *TEXTS[4:]], "label": ["a", "b", "a", "", *labels[4:]]}
    assert not any("several labels" in note for note in classified(write(f"d{name}", missing)).notes)


def test_rows_are_counted_from_the_first_although_it_lacks_the_label():
    rows = [{"text": "no label"}, *({"text": text, "label": "a"} for text in TEXTS)]
    rows += [{"text": TEXTS[0], "label": "b"}, {"text": "other", "label": "b"}]
    Path("a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    note = "1 text with several labels; first: rows 2 and 42, the header not counted"
    found = classified(Path("a.jsonl"))
    assert note in found.notes
    assert len(found.lengths) == len(rows) - 1, "a row without a label is not trained on"


def test_labels_with_missing_values():
    missing = {"text": TEXTS, "label": of([0.0, float("nan"), 1.0])}
    for name in ("a.jsonl", "a.parquet"):
        assert classified(write(name, missing)).keys["classification.label_names"] == ["0.0", "1.0"]
    scores = {"text": TEXTS, "label": of([0.5, "nan", 1.0]), "": of([""])}
    assert classified(write("a.csv", scores)).keys["classification.problem"] == "regression"
    Path("b.jsonl").write_text("{}\n{}\n", encoding="utf-8")
    refusal_of(classified, "unclear-table", "has no rows", Path("b.jsonl"))


@pytest.mark.parametrize("infer", [classified, paired, tagged])
def test_a_table_may_have_the_name_of_a_text(infer):
    Path("my train.txt").write_text("text\tlabel\n", encoding="utf-8")
    error = refusal_of(infer, "unclear-table", "is plain text without labels", Path("my train.txt"))
    assert "if tabs separate the fields: cp 'my train.txt' 'my train.tsv'; " in error.hint
    assert ("contrastive.positives: dropout" in error.hint) == (infer is paired)


def test_words_without_lists_are_refused():
    with pytest.raises(ProjectError, match="one column with lists of words is expected, found no lists"):
        tagged(write("a.csv", {"tokens": TEXTS, "tags": TEXTS}))
    error = refusal_of(
        tagged, "unclear-table", "found no lists", Path("a.csv"), {"dataset.text_column": "tokens"}
    )
    assert "NAME.conll" in error.hint, "the column is there, and has no lists"


@pytest.mark.parametrize(
    ("columns", "keys", "num_texts"),
    [
        ({"anchor": TEXTS, "positive": TEXTS}, {"max_negatives": 0}, 80),
        (
            {"query": TEXTS, "corpus": TEXTS, "negative": of([["a b", "", "a b", "c d"]])},
            {"max_negatives": 2},
            160,
        ),
        (
            {"question": TEXTS, "text": TEXTS, "passage": TEXTS, "answer": TEXTS, "negative": TEXTS},
            {"text_column": "question", "positive_column": "passage", "max_negatives": 1},
            120,
        ),
    ],
)
def test_columns_of_pairs(columns, keys, num_texts):
    table = paired(write("a.jsonl", columns))
    assert {key.rpartition(".")[2]: value for key, value in table.keys.items()} == keys
    assert len(table.lengths) == num_texts


@pytest.mark.parametrize("name", ["label", "gold_label"])
def test_labels_of_pairs_that_are_no_scores_are_noted(name):
    rows = {"premise": TEXTS, "hypothesis": TEXTS, name: of(["entailment", "contradiction"])}
    (note,) = (each for each in paired(write("nli.csv", rows)).notes if "not read" in each)
    assert f"column '{name}' ('contradiction', 'entailment'); remove rows" in note
    rows[name] = ["entailment"] * len(TEXTS)
    assert not any("not read" in each for each in paired(write("entailed.csv", rows)).notes)


def test_pairs_of_duplicates_and_others_have_scores():
    rows = {"question1": TEXTS, "question2": TEXTS, "is_duplicate": of([0, 1])}
    assert paired(write("quora.csv", rows)).keys["contrastive.score_column"] == "is_duplicate"


def test_negatives_that_the_first_rows_lack_are_found():
    rows = [{"query": text, "positive": text} for text in TEXTS]
    most = {f"negative_{number}": "a b" for number in range(1, 65)}
    Path("mined.jsonl").write_text("\n".join(map(json.dumps, [*rows, rows[0] | most])), encoding="utf-8")
    assert paired(Path("mined.jsonl")).keys == {"contrastive.max_negatives": 64}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"instruction": "a"}, "the row has no column 'output'"),
        ({"instruction": "a", "output": "b", "input": ["c"]}, "input is a list, expected a string"),
        (
            {"instruction": "a", "output": "b", "system": {"c": 1}},
            "system is an object with keys, expected a string",
        ),
    ],
)
def test_a_later_row_of_another_form_is_refused_with_its_line(row, problem):
    rows = [{"instruction": "a", "output": "b", "input": None}, row]
    Path("chat.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert refusal_of(conversed, "DAT020", problem, Path("chat.jsonl")).place == "chat.jsonl:2"


def test_a_table_without_pairs_is_refused():
    with pytest.raises(ProjectError, match=r"no column of documents found \(columns: 'other'"):
        paired(write("a.csv", {"query": TEXTS, "other": TEXTS}))
    error = refusal_of(
        paired, "unclear-table", "the table has no other column", write("b.csv", {"query": TEXTS})
    )
    assert error.hint == "add a column of documents"


def test_a_saved_dataset_is_read_as_any_table():
    import datasets

    turns = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "2"}]
    rows = {"body": TEXTS, "mood": of(["bad", "good"]), "messages": [turns] * 40}
    datasets.Dataset.from_dict(rows).save_to_disk("single")
    datasets.DatasetDict(train=datasets.Dataset.from_dict(rows)).save_to_disk("several")
    for folder in map(Path, ("single", "several")):
        assert classified(folder).keys["dataset.text_column"] == "body"
        assert conversed(folder).notes[0].startswith("conversations: messages in column 'messages', 40 rows")


def test_classes_of_a_saved_dataset_that_are_named_by_other_numbers_have_no_names():
    """The rows hold 0 to 4, of which 1 was read as the class named 1, which is class 0."""
    import datasets

    names = datasets.ClassLabel(names=["1", "2", "3", "4", "5"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    rows = {"text": TEXTS, "label": of([0, 1, 2, 3, 4])}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk("stars")
    assert classified(Path("stars")).keys["classification.num_labels"] == 5


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_truth_values_rate_pairs(name: str) -> None:
    table = paired(write(name, {"query": TEXTS, "positive": TEXTS[::-1], "label": of([True, False])}))
    assert table.keys["contrastive.score_column"] == "label"
    assert [parse_score(cell, "here", "key") for cell in (True, "True", False, "False")] == [1, 1, 0, 0]
