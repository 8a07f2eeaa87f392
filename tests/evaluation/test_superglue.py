"""SuperGLUE as published, AllNLI, and data sets in the layout of the Hub, with rows of our own."""

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from launcher.io.files import require_source
from neobert.data.sources import hub
from neobert.errors import ProjectError
from neobert.evaluation.glue.files import prepare_task
from neobert.evaluation.glue.sources import is_hub_copy, split_parts
from neobert.evaluation.glue.superglue import multirc_rows, wic_rows, wsc_rows
from neobert.evaluation.glue.tasks import SUITES, TASKS, expand_task_names
from neobert.hub_names import is_hub_name
from tests.evaluation.test_glue_files import rows_of

WSC = {
    "text": "The  cup fell off the big table because it was old.",
    "target": {"span1_index": 5, "span1_text": "big table", "span2_index": 8, "span2_text": "it"},
}
FLAT_WSC = {"text": WSC["text"], **WSC["target"]}
PASSAGE = {
    "text": "<b>Sent 1: </b>Ann has 3 < 4 cats.<br><b>Sent 2: </b>Bob has a dog.",
    "questions": [
        {"question": "Who has cats?", "answers": [{"text": "Ann", "label": 1}, {"text": "Bob", "label": 0}]},
        {"question": "Who has a dog?", "answers": [{"text": "Bob", "label": 1}]},
    ],
}
CLEAN = "Sent 1: Ann has 3 < 4 cats. Sent 2: Bob has a dog."
# By task: the row as published, the row as a flat table, and the texts and label that a run reads.
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, list[dict[str, str]]]] = {
    "boolq": (
        {"question": "is tea hot", "passage": "Tea is served hot.", "idx": 0, "label": True},
        {"question": "is tea hot", "passage": "Tea is served hot.", "idx": 0, "label": 1},
        [{"text": "is tea hot", "pair": "Tea is served hot.", "label": "true"}],
    ),
    "cb": (
        {"premise": "It rains.", "hypothesis": "It is dry.", "label": "contradiction", "idx": 0},
        {"premise": "It rains.", "hypothesis": "It is dry.", "label": 1, "idx": 0},
        [{"text": "It rains.", "pair": "It is dry.", "label": "contradiction"}],
    ),
    "copa": (
        {"premise": "It rained.", "choice1": "I ran.", "choice2": "I sat.", "question": "effect", "label": 0},
        None,
        [
            {
                "text": "It rained. What happened as a result?", "pair": "1: I ran. 2: I sat.",
                "label": "choice1",
            }
        ],
    ),
    "multirc": (
        {"idx": 0, "version": 1.1, "passage": PASSAGE},
        {"paragraph": PASSAGE["text"], "question": "Who has cats?", "answer": "Ann", "label": 1},
        [
            {"text": "Who has cats? Ann", "pair": CLEAN, "label": "true"},
            {"text": "Who has cats? Bob", "pair": CLEAN, "label": "false"},
            {"text": "Who has a dog? Bob", "pair": CLEAN, "label": "true"},
        ],
    ),
    "rte": (
        {"premise": "It rains.", "hypothesis": "It is wet.", "label": "entailment", "idx": 0},
        {"premise": "It rains.", "hypothesis": "It is wet.", "label": 0, "idx": 0},
        [{"text": "It rains.", "pair": "It is wet.", "label": "entailment"}],
    ),
    "wic": (
        {
            "word": "bank", "sentence1": "A river bank.", "sentence2": "Banks lend.", "label": False,
            "start1": 8, "end1": 12, "start2": 0, "end2": 5, "version": 1.1, "idx": 0,
        },
        None,
        [{"text": "A river * bank *.", "pair": "* Banks * lend.", "label": "false"}],
    ),
    "wsc": (
        {**WSC, "label": True, "idx": 0},
        {**FLAT_WSC, "label": 1, "idx": 0},
        [{"text": "The cup fell off the # big table # because * it * was old.", "label": "true"}],
    ),
}  # fmt: skip
FOLDERS = {"boolq": "BoolQ", "cb": "CB", "copa": "COPA", "multirc": "MultiRC", "rte": "RTE", "wic": "WiC"}


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def written(folder: Path, row: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    for name in ("train", "val", "test"):
        (folder / f"{name}.jsonl").write_text(jsonl([row]), encoding="utf-8")


def test_every_task_of_the_suite_is_here():
    assert set(ROWS) == {*SUITES[1].tasks}


@pytest.mark.parametrize("name", ROWS)
def test_published_rows_are_read(name, tmp_path):
    published, _, wanted = ROWS[name]
    written(tmp_path / "data" / FOLDERS.get(name, "WSC"), published)
    report = prepare_task(TASKS[name], tmp_path / "data", tmp_path / "out")
    assert rows_of(tmp_path / "out", "train") == rows_of(tmp_path / "out", "dev") == wanted
    assert report["dev"]["in_train"] == len(wanted)
    assert report["dev"]["source"].endswith("val.jsonl")


@pytest.mark.parametrize("name", [name for name, (_, flat, _) in ROWS.items() if flat is not None])
def test_flat_rows_of_tables_are_read(name, tmp_path):
    _, flat, wanted = ROWS[name]
    written(tmp_path / "data" / name, flat or {})
    prepare_task(TASKS[name], tmp_path / "data", tmp_path / "out")
    assert rows_of(tmp_path / "out", "train") == wanted[:1]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("wic", {"end2": 99}, r"characters 0 to 99 are not in sentence2"),
        ("wic", {"start1": -1}, r"characters -1 to 12 are not in sentence1"),
        ("wic", {"start1": "8"}, r"is not a row of task wic"),
        ("wic", {"start1": 12}, r"characters 12 to 12 are not in sentence1"),
        ("wsc", {"target": {**WSC["target"], "span1_index": -1}}, r"span1_index -1 is not in the text"),
        ("wsc", {"target": {**WSC["target"], "span2_text": ""}}, r"span2_index 8 is not in the text"),
        ("wsc", {"target": {**WSC["target"], "span1_index": 10}}, r"span1_index 10 is not in the text"),
        ("wsc", {"target": {"span1_index": 0}}, r"missing key 'span1_text'"),
        ("copa", {"question": "why"}, r"missing key 'why'"),
        ("multirc", {"passage": {"text": "a"}}, r"missing key 'questions'"),
        ("boolq", {"label": "maybe"}, r"label 'maybe' is unknown \(labels: false, true, or 0 to 1\)"),
    ],
)
def test_rows_of_another_layout_are_refused_with_their_place(name, change, message, tmp_path):
    written(tmp_path / "data" / FOLDERS.get(name, "WSC"), ROWS[name][0] | change)
    with pytest.raises(ProjectError, match=message) as refusal:
        prepare_task(TASKS[name], tmp_path / "data", tmp_path / "out")
    assert refusal.value.place.endswith("train.jsonl:1")


def test_a_mark_does_not_depend_on_the_words_of_others():
    """Negative control: spans of one word, next to each other, and at the ends of the text."""
    spans = {"span1_index": 0, "span1_text": "a", "span2_index": 1, "span2_text": "b"}
    assert next(wsc_rows({"text": "a b", "target": spans}))["text"] == "# a # * b *"
    row = {"sentence1": "ab", "start1": 0, "end1": 2, "sentence2": "b", "start2": 0, "end2": 1}
    assert next(wic_rows(row)) == {"text": "* ab *", "pair": "* b *", "label": None}


def test_answers_without_labels_are_counted(tmp_path):
    unlabelled = {"passage": {"text": "a", "questions": [{"question": "q", "answers": [{"text": "x"}]}]}}
    assert [row["label"] for row in multirc_rows(unlabelled)] == [None]
    folder = tmp_path / "data" / "MultiRC"
    written(folder, ROWS["multirc"][0])
    (folder / "val.jsonl").write_text(jsonl([ROWS["multirc"][0], unlabelled]))
    report = prepare_task(TASKS["multirc"], tmp_path / "data", tmp_path / "out")
    assert (report["dev"]["rows"], report["dev"]["unlabelled"]) == (3, 1)


def test_suites_are_names_of_tasks():
    assert expand_task_names("superglue,cola,rte") == (
        "boolq",
        "cb",
        "copa",
        "multirc",
        "rte",
        "wic",
        "wsc",
        "cola",
    )
    assert expand_task_names("glue,nothing") == (*SUITES[0].tasks, "nothing")


NLI = {"sentence1": "It rains.", "sentence2": "It is wet."}


def test_allnli_is_snli_and_mnli(tmp_path):
    written(tmp_path / "SNLI", {**NLI, "gold_label": "entailment"})
    written(tmp_path / "MNLI", {**NLI, "gold_label": "neutral"})
    report = prepare_task(TASKS["allnli"], tmp_path, tmp_path / "out")
    assert report["train"]["source"] == "SNLI/train.jsonl, MNLI/train.jsonl"
    assert report["dev"]["labels"] == {"entailment": 1, "neutral": 1}
    for task, other in ((TASKS["snli"], "train_rows"), (TASKS["mnli"], "dev_rows")):
        assert getattr(TASKS["allnli"], other) > getattr(task, other)
    assert TASKS["allnli"].train_rows == TASKS["snli"].train_rows + TASKS["mnli"].train_rows
    assert TASKS["allnli"].dev_rows == TASKS["snli"].dev_rows + TASKS["mnli"].dev_rows


@pytest.mark.parametrize(
    ("card", "is_copy"),
    [
        ("---\nconfigs:\n---\n", True),
        ("---\ntags: [a]\nconfigs:\n- a\n---\n# Card\n", True),
        ("---\ntags: [a]\n---\nconfigs:\n", False),
        ("---\nconfigs:\n", False),
        ("configs:\n---\n", False),
        ("# Card\n---\nconfigs:\n---\n", False),
        ("", False),
    ],
)
def test_a_copy_of_a_repository_lists_configurations_in_its_front_matter(card, is_copy, tmp_path):
    (tmp_path / "README.md").write_text(card, encoding="utf-8")
    assert is_hub_copy(tmp_path) is is_copy


def test_one_file_of_several_splits_is_divided(tmp_path):
    (tmp_path / "AllNLI").mkdir()
    lines = ["split\tdataset\tfilename\tsentence1\tsentence2\tlabel"]
    lines += [
        f'{split}\tSNLI\tf\t"a\t{split}\t{label}'
        for split, label in (("train", "neutral"), ("dev", "entailment"), ("test", "contradiction"))
    ]
    (tmp_path / "AllNLI" / "AllNLI.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    prepare_task(TASKS["allnli"], tmp_path, tmp_path / "out")
    assert rows_of(tmp_path / "out", "train") == [{"text": '"a', "pair": "train", "label": "neutral"}]
    assert rows_of(tmp_path / "out", "dev") == [{"text": '"a', "pair": "dev", "label": "entailment"}]


@pytest.fixture
def hub_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a repository with data sets: two configurations, whose classes are in another order."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "owner" / "suite"
    classes = ClassLabel(names=["neutral", "contradiction", "entailment"])
    features = Features({"premise": Value("string"), "hypothesis": Value("string"), "label": classes})
    lines = ["---", "configs:"]
    for name in ("cb", "axb"):
        lines += [f"- config_name: {name}", "  data_files:"]
        for split, label in (("validation", 2), ("train", 0), ("test", -1)):
            row = {"premise": f"{split} it rains", "hypothesis": "it is wet", "label": label}
            (folder / "data").mkdir(parents=True, exist_ok=True)
            Dataset.from_list([row, row | {"label": None}], features=features).to_parquet(
                folder / "data" / f"{name}_{split}.parquet"
            )
            lines += [f"  - split: {split}", f"    path: data/{name}_{split}.parquet"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]), encoding="utf-8")
    return folder


def test_a_copy_of_a_repository_is_read_by_its_configurations(hub_copy, tmp_path):
    report = prepare_task(TASKS["cb"], hub_copy, tmp_path / "out")
    assert rows_of(tmp_path / "out", "train") == [
        {"text": "train it rains", "pair": "it is wet", "label": "neutral"}
    ]
    assert rows_of(tmp_path / "out", "dev")[0]["label"] == "entailment"
    assert (report["dev"]["source"], report["dev"]["unlabelled"]) == (f"{hub_copy}, validation", 1)


def test_several_splits_of_a_configuration_are_refused(hub_copy):
    card = hub_copy / "README.md"
    more = "  - split: train_more\n    path: data/cb_validation.parquet\n- config_name: axb"
    card.write_text(card.read_text(encoding="utf-8").replace("- config_name: axb", more), encoding="utf-8")
    with pytest.raises(ProjectError, match="task cb has several train splits: train, train_more") as refusal:
        split_parts(TASKS["cb"], str(hub_copy))
    assert refusal.value.hint.endswith("in a folder per task, with one train file")


def test_a_missing_configuration_is_named(hub_copy):
    with pytest.raises(ProjectError, match="has no configuration wic, only cb, axb"):
        split_parts(TASKS["wic"], str(hub_copy))


def test_a_name_without_a_connection_is_one_error_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(hub, "is_unreachable", lambda: True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProjectError) as refusal:
        prepare_task(TASKS["cb"], "owner/absent-data-set", tmp_path / "out")
    assert (refusal.value.code, refusal.value.place) == ("DAT001", "owner/absent-data-set")
    assert refusal.value.hint.startswith("no such local path and no connection to the Hub: use a local")
    assert "\n" not in str(refusal.value.message)


@pytest.mark.parametrize(
    ("name", "is_name"),
    [
        ("nyu-mll/glue", True), ("aps/super_glue", True), ("glue", False), ("./a/b", False), ("/a/b", False),
        ("a/b/c", False), ("../b", False), ("here/data", False), ("~/data", False),
    ],
)  # fmt: skip
def test_a_local_path_is_no_name(name, is_name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "data").mkdir(parents=True)
    assert is_hub_name(name) is is_name
    if is_name:
        assert require_source(Path(name), "DATA") == name
