"""Commands on folders and files of text: what is read, what is left out, and what cannot be read."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.jsonl import write_jsonl

TINY = "model: {hidden_size: 64, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64}\n"


@pytest.fixture
def lint(command: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Lint a run on a text; returns the exit code and the findings about data."""

    def run(
        path: Any, *options: str, tokenizer: dict[str, Any] | None = None, **dataset: Any
    ) -> tuple[int, dict[str, str], dict[str, str]]:
        file = tmp_path / "run.yaml"
        section = json.dumps({"path": path} | dataset)
        sections = f"dataset: {section}\ntokenizer: {json.dumps(tokenizer or {})}\n"
        file.write_text(f"profile: cpu\n{TINY}{sections}trainer: {{max_steps: 150}}\n")
        answer = command("lint", file, *options, "--select", "DAT", "--output-format", "json")
        findings = {each["code"]: f"{each['message']} | {each['hint']}" for each in answer.json["findings"]}
        return answer.code, findings, {each["id"]: each["status"] for each in answer.json["checks"]}

    return run


def mess(root: Path) -> Path:
    """A folder as people have them: formats, line ends and a byte order mark, links in a loop, a FIFO."""
    root.mkdir()
    write_jsonl(root / "b.jsonl", [f"document {number} of some words" for number in range(40)])
    (root / "a.txt").write_bytes("\ufeffone\r\n\r\ntwo\r\n".encode())
    (root / "c.csv").write_text("id,body\n1,lost\n2,and more\n")
    (root / "d.csv").write_text('text,id\n"a text, quoted",1\n')
    (root / "notes.md").write_text("# Notes\n\nmore\n")
    (root / "README.md").write_text("# About\n")
    (root / "empty.txt").touch()
    os.mkfifo(root / "pipe.txt")
    (root / "loop").symlink_to(root)
    return root


def test_lint_names_what_a_folder_holds_and_the_run_does_not_read(lint, tmp_path):
    code, findings, _ = lint(str(mess(tmp_path / "mess")))
    assert code == 0
    assert set(findings) == {"DAT025", "DAT031"}
    message, hint = findings["DAT031"].split(" | ")
    assert message.endswith("1 x .csv, such as c.csv (none of the columns is named text, sentence, content)")
    table = {"path": str(tmp_path / "mess" / "c.csv"), "text_column": "body"}
    assert "dataset.mixture, with a text_column" in hint
    assert lint(None, mixture=[{"path": str(tmp_path / "mess")}, table])[0] == 0


@pytest.mark.child  # git
def test_files_that_are_not_read_are_in_the_order_of_their_number(command, lint, tmp_path):
    """lint sorted findings by their text, with 12 before 3, and preflight by the folder's listing."""
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n\ntwo\n")
    for name in ("a.doc", *(f"{n}.docx" for n in range(3)), *(f"{n}.pdf" for n in range(12))):
        (folder / name).touch()
    lint(str(folder))
    expected = ["12 x .pdf, such as 0.pdf", "3 x .docx, such as 0.docx", "1 x .doc, such as a.doc"]
    for words in (("lint", "run.yaml"), ("preflight", "--config", "run.yaml", "--level", "static,host")):
        findings = command(*words, "--output-format", "json").json["findings"]
        messages = [each["message"] for each in findings if each["code"] == "DAT031"]
        assert [message.partition(": ")[2].partition(" (")[0] for message in messages] == expected


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("late.txt", b"x\n" * 9999 + b"\xff", "late.txt:10000: is not UTF-8"),
        ("a.csv", b"id,body\n1,x\n", "none of the columns is named text, sentence, content"),
        ("a.rtf", b"x", "is a formatted document"),
    ],
)
def test_text_that_cannot_be_read_is_found_before_a_run(lint, command, tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    code, findings, _ = lint(str(tmp_path / name))
    assert code == 1
    assert says in findings["DAT032"]
    answer = command("train", "--dry-run", tmp_path / "run.yaml")
    assert (answer.code, "DAT032" in answer.out) == (1, True)


def test_a_text_of_one_document_has_none_left_for_the_evaluation(lint, tmp_path):
    (tmp_path / "lines.txt").write_text("a line\n" * 200)
    (tmp_path / "two.txt").write_text("a document\n\nanother\n")
    for dataset in (
        {"path": str(tmp_path / "lines.txt")},
        {"path": None, "mixture": [{"path": str(tmp_path / name)} for name in ("two.txt", "lines.txt")]},
    ):
        code, findings, _ = lint(**dataset, validation_split=0.05)
        assert (code, "lines.txt is one document" in findings["DAT032"]) == (1, True)
        assert "set dataset.document_per_line to true" in findings["DAT032"]
        assert "DAT032" not in lint(**dataset, validation_split=0.05, document_per_line=True)[1]
    assert "DAT032" not in lint(str(tmp_path / "lines.txt"), validation_split=None)[1]


@pytest.mark.child  # git
def test_a_fifo_is_one_finding_and_is_not_called_empty(lint, command, tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    lint(str(tmp_path / "pipe.txt"))
    answer = command("preflight", "run.yaml", "--level", "static,host", "--output-format", "json")
    failed = {each["code"]: each["message"] for each in answer.json["findings"] if each["severity"] == "fail"}
    assert failed == {"DAT032": f"{tmp_path / 'pipe.txt'}: is not a regular file"}


def test_text_that_cannot_be_opened_is_a_finding_next_to_those_of_other_files(command, tmp_path):
    for name, path in (("a.yaml", "x" * 300), ("b.yaml", "3")):
        (tmp_path / name).write_text(f"profile: cpu-demo\ndataset:\n  path: {path}\n")
    answer = command("lint", tmp_path / "a.yaml", tmp_path / "b.yaml", "--output-format", "json")
    found = {(Path(each["file"]).name, each["code"]): each["message"] for each in answer.json["findings"]}
    assert "cannot be read: File name too long" in found["a.yaml", "DAT032"]
    assert ("b.yaml", "CFG003") in found
    read, write = os.pipe()
    os.write(write, (tmp_path / "a.yaml").read_bytes())
    os.close(write)
    assert command("lint", f"/dev/fd/{read}").code == 0
    os.close(read)


def test_a_path_that_does_not_exist_is_unknown_in_ci_and_fails_with_data(lint, command, tmp_path):
    code, findings, checks = lint(str(tmp_path / "novells"))
    assert (code, findings, checks["DAT032"]) == (0, {}, "unknown")
    assert "novells does not exist here" in command("lint", tmp_path / "run.yaml").err
    code, findings, _ = lint(str(tmp_path / "novells"), "--data")
    assert (code, "novells: does not exist" in findings["DAT032"]) == (1, True)
    assert command("train", "--dry-run", tmp_path / "run.yaml").code == 1
    pattern = str(tmp_path / "novels" / "*.txt")
    assert lint(pattern, "--data")[1]["DAT032"].startswith(f"{pattern}: matches no file")


def test_lint_opens_parquet_with_data_only(lint, command, tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "a.parquet")
    assert "none of the columns" in lint(str(tmp_path / "a.parquet"), "--data")[1]["DAT032"]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert lint(str(tmp_path / "a.parquet"))[0] == 0


def test_evaluation_files_with_training_text_are_found(lint, tmp_path):
    texts = [f"document {number} has its own words" for number in range(200)]
    folder = write_jsonl(tmp_path / "data" / "train.jsonl", texts).parent
    write_jsonl(folder / "valid.jsonl", [text.upper() for text in texts[:50]])
    code, findings, _ = lint(str(folder))
    assert (code, "100.0% of" in findings["DAT033"]) == (1, True)
    write_jsonl(folder / "valid.jsonl", ["a text of its own"])
    assert lint(str(folder))[0] == 0


def test_a_file_without_suffix_is_named_with_its_command_and_a_fifo_as_a_fifo(lint, command, tmp_path):
    folder = mess(tmp_path / "mess")
    (folder / "c.csv").unlink()
    (folder / "chapter").write_text("once upon a time\n")
    (folder / ".notes.txt").write_text("hidden\n")
    os.mkfifo(folder / "pipe")
    assert lint(str(folder))[1]["DAT031"].endswith(f"plain text: cp {folder}/chapter {folder}/chapter.txt")
    (text,) = command("plan", tmp_path / "run.yaml", "--output-format", "json").json["text"]
    kinds = {each["kind"]: each["num_files"] for each in text["left_out"]}
    assert kinds == {"chapter": 1, "FIFO": 2, "hidden file": 1, "README.md": 1, "empty": 1}


@pytest.mark.child  # git
def test_an_empty_file_that_a_pattern_matches_does_not_fail_preflight(lint, command, tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "empty.txt").touch()
    lint(str(tmp_path / "*.txt"))
    assert "DAT001" not in command("preflight", tmp_path / "run.yaml", "--level", "static,host").out
    lint([str(tmp_path / "a.txt"), str(tmp_path / "empty.txt")])
    assert "empty.txt is empty" in command("preflight", tmp_path / "run.yaml", "--level", "static,host").out


@pytest.mark.child  # git, and preparation of the data
def test_data_that_is_not_set_is_one_failure(command):
    answer = command("preflight", "-p", "cpu", "--level", "static,host,data", "--json")
    codes = [each["code"] for each in answer.json["findings"] if each["severity"] == "fail"]
    assert [code for code in codes if code.startswith("DAT")] == ["DAT013"]


def test_an_empty_path_and_a_list_in_one_text_are_named(lint):
    for path in ("", []):
        code, findings, _ = lint(path)
        assert (code, findings["DAT013"].partition(" | ")[0]) == (1, "dataset.path is empty")
    assert "[first.txt, second.txt]" in lint("a.txt, b.txt", "--data")[1]["DAT032"]


@pytest.mark.parametrize(
    ("splits", "says"),
    [
        (
            {"train_split": "train[0:]", "eval_split": "train[:50]"},
            "overlap: train[:50] and train[0:]",
        ),
    ],
)
def test_splits_that_cannot_be_read_are_found(lint, tmp_path, splits, says):
    write_jsonl(tmp_path / "data" / "a.jsonl", [f"document {number}" for number in range(99)])
    code, findings, _ = lint(str(tmp_path / "data"), **splits)
    assert (code, says in findings["DAT032"]) == (1, True)
    assert lint(str(tmp_path / "data"), train_split="train[9:]", eval_split="train[:9]")[0] == 0


def test_a_pattern_and_a_list_are_read_and_a_line_can_be_a_document(lint, command, tmp_path):
    for name in ("a.txt", "b.txt", "c.log"):
        (tmp_path / name).write_text("one\ntwo\nthree\n")
    assert lint(str(tmp_path / "*.txt"), document_per_line=True)[0] == 0
    assert "2 x .txt, 6 documents" in command("plan", tmp_path / "run.yaml").out
    assert lint([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])[0] == 0
    assert "2 x .txt, 2 documents" in command("plan", tmp_path / "run.yaml").out


@pytest.mark.child  # git
def test_plan_and_preflight_print_what_is_read(lint, command, tmp_path):
    lint(str(mess(tmp_path / "mess")))
    files = "mess: 1 x .txt, 1 x .jsonl, 1 x .csv, 1 x .md, 45 documents; not read: 1 x .csv (none of the"
    assert files in command("plan", tmp_path / "run.yaml").out
    (text,) = command("plan", tmp_path / "run.yaml", "--output-format", "json").json["text"]
    kinds = {each["kind"]: each["num_files"] for each in text["left_out"]}
    assert kinds == {".csv": 1, "FIFO": 1, "README.md": 1, "empty": 1}
    answer = command("preflight", tmp_path / "run.yaml", "--level", "static,host")
    assert "DAT031" in answer.out
    assert "45 documents; not read: 1 x .csv" in " ".join(answer.out.split())


HINDI = "हिन्दी में लिखा हुआ है। यह छोटा पाठ है। Nur ein paar Wörter."


@pytest.mark.parametrize("keys", [{}, {"algorithm": "bpe"}, {"lowercase": True}])
def test_a_tokenizer_that_keeps_the_text_is_not_reported(lint, tmp_path, keys):
    assert altered(lint, tmp_path, HINDI, keys) == ""


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ({"strip_accents": True}, "set tokenizer.strip_accents to false"),
        ({"name": "bert-base-uncased"}, "set tokenizer.name to null: the run then trains a tokenizer"),
        ({"path": "tok"}, "set tokenizer.path to null: the run then trains a tokenizer"),
    ],
)
def test_a_tokenizer_that_deletes_vowel_signs_is_reported_with_a_word(lint, tmp_path, keys, hint):
    Path("tok").mkdir()
    bert = {"normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None}}
    Path("tok/tokenizer.json").write_text(json.dumps(bert), encoding="utf-8")
    found = altered(lint, tmp_path, HINDI, keys)
    assert "the tokenizer changes 46.2% of the first 13 words in " in found
    assert "such as है to ह (limit 2.0%)" in found
    assert hint in found
    english = "Plain words of the English language. " * 9
    assert altered(lint, tmp_path, f"{english} café", keys) == "", "one of 55 words"


def altered(lint: Any, tmp_path: Path, text: str, keys: dict[str, Any]) -> str:
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    return lint(str(tmp_path / "a.txt"), tokenizer=keys)[1].get("DAT035", "")


def test_prepared_data_is_not_the_text_it_was_made_from(lint, tmp_path):
    """Its manifest was read as rows, and is not JSON lines."""
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    (prepared / "manifest.json").write_text("{\n}\n")
    (prepared / "train.tokens").touch()
    code, findings, _ = lint(str(prepared))
    assert code == 1
    hint = f"set dataset.cache_dir to {prepared}, and dataset.path to its original text"
    assert findings["DAT032"].endswith(f"holds prepared data, not text files | {hint}")
