"""Indexes: what they hold, what is refused, continuation; the commands of docs/encoding.md."""

import io
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from launcher.cli import app
from neobert.encoding import Encoder, job, passages
from neobert.encoding.job import run
from neobert.encoding.shards import Shards
from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK, EXIT_USAGE, ProjectError
from neobert.runfiles.model_folder import read_json
from neobert.search import job as search_job
from neobert.search.index import TEXTS, open_index
from neobert.search.job import Request
from tests.refusals import refusal_of
from tests.search.conftest import TEXTS as SOURCE

PAGE = Path(__file__).parents[2] / "docs" / "encoding.md"
PROMPTS = {"prompts": {"query": "a ", "passage": "b "}, "default_prompt_name": None}


def found(index: Path, query: str, **settings):
    (result,) = search_job.run(Request(index=str(index), queries=[query], **settings))["results"]
    return result["found"]


def test_the_rows_are_those_of_the_whole_product(index, model_folder):
    encoder = Encoder.load(model_folder, normalize=True)
    scores = encoder.encode(SOURCE) @ encoder.encode(["text a"])[0]
    order = np.argsort(-scores.round(6), kind="stable")
    results = found(index, "text a", top=99)
    assert [each["row"] for each in results] == order.tolist()
    assert [each["score"] for each in results] == pytest.approx(scores[order], abs=2e-6)
    assert [each["text"] for each in results] == [SOURCE[row] for row in order]


def test_a_query_that_is_not_utf8_is_read_as_a_file_is(index):
    assert found(index, "text \udcff") == found(index, "text \ufffd")


def test_a_killed_job_continues_to_the_same_index(request_of, index, tmp_path, monkeypatch):
    again = replace(request_of, output=str(tmp_path / "again" / Path(request_of.output).name))
    kept = Shards.write
    monkeypatch.setattr(Shards, "write", lambda *arguments: (kept(*arguments), _interrupt()))
    with pytest.raises(KeyboardInterrupt):
        run(again)
    refusal_of(open_index, "search-index", "has no complete index", tmp_path / "again")
    monkeypatch.undo()
    run(again)
    for name in (TEXTS, "offsets.npy", "embeddings.npy"):
        assert (tmp_path / "again" / name).read_bytes() == (index / name).read_bytes()
    refusal_of(run, "search-index", "has an index already", again)


def test_long_texts_of_a_folder_are_found_in_passages_with_their_file(request_of, tmp_path, monkeypatch):
    folder = tmp_path / "notes"
    folder.mkdir()
    end = "c c c b b."
    long_text = " ".join(["the model reads. text é"] * 12) + "\n" + end
    (folder / "long.md").write_text(long_text, encoding="utf-8")
    (folder / "short.txt").write_text("a b c", encoding="utf-8")
    output = tmp_path / "of-notes" / Path(request_of.output).name
    report = run(replace(request_of, texts=str(folder), output=str(output), max_length=24))
    assert (report["texts"], report["truncated"]) == (2, 0)
    assert report["passages"] == report["embeddings"][0] > 3
    results = found(output.parent, end, top=99)
    assert results[0]["text"].endswith(end)
    assert {(each["row"], each["file"]) for each in results} == {(0, "long.md"), (1, "short.txt")}
    monkeypatch.setattr(passages, "WINDOW", 50)
    run(replace(request_of, texts=str(folder), output=str(tmp_path / "windows" / output.name), max_length=24))
    for index in (output.parent, tmp_path / "windows"):
        rows = map(json.loads, (index / TEXTS).read_text("utf-8").splitlines())
        assert "".join(each["text"] for each in rows if each["row"] == 0) == long_text


def test_a_model_of_long_rows_still_finds_short_passages(request_of, tmp_path, monkeypatch):
    """One vector for 8,192 tokens finds a chapter, and `search` prints all of it."""
    source, name = tmp_path / "long.txt", Path(request_of.output).name
    source.write_text(" ".join(["the model reads. text"] * 12))
    asked = replace(request_of, texts=str(source), output=str(tmp_path / "asked" / name), max_length=16)
    monkeypatch.setattr(passages, "LONGEST", 16)
    short = replace(asked, output=str(tmp_path / "short" / name), max_length=None)
    longer = replace(asked, output=str(tmp_path / "longer" / name), max_length=24)
    number = [run(each)["passages"] for each in (asked, short, longer)]
    assert number[0] == number[1] > number[2] > 1


def _interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("edited", "message"),
    [
        ("texts.txt", "texts.txt: the file was edited after the index was written"),
        ("index/texts.jsonl", "texts.jsonl: the file was edited after the index was written"),
        ("folder/config.json", "folder: this is not the model of the index: config.json differs"),
        ("index/index.json", "index.json: rows should be a valid integer, got 'many'"),
        (
            "index/embeddings.npy",
            "embeddings.npy: the array is float32 [2, 32], expected float32 [7, any] in C order",
        ),
    ],
)
def test_what_was_edited_is_refused(edited, message, index, tmp_path):
    file = tmp_path / edited
    if edited.endswith(".npy"):
        np.save(file, np.load(file)[:2])
    elif edited.endswith("index.json"):
        file.write_text(json.dumps(read_json(file) | {"rows": "many"}))
    elif edited.endswith("config.json"):
        file.write_text(json.dumps(read_json(file) | {"rope_theta": 20_000.0}))
    else:
        file.write_bytes(file.read_bytes().replace(b"model", b"MODEL"))  # as long as before
    with pytest.raises(ProjectError) as caught:
        found(index, "text")
    assert f"{caught.value.place}: {caught.value.message}".endswith(message)
    assert caught.value.exit_code == EXIT_CHECK_FAILED


@pytest.mark.usefixtures("warm")
def test_an_index_that_lacks_a_file_names_it(index, capsys):
    (index / "offsets.npy").unlink()
    assert app.run(["search", str(index), "text"]) == EXIT_USAGE
    reported = capsys.readouterr().err
    assert "has no complete index: offsets.npy is missing" in reported
    assert "encode MODEL TEXTS --index" in reported


def test_an_index_that_names_no_digests_is_refused(index):
    (index / "index.json").write_text(json.dumps(read_json(index / "index.json") | {"files": {}}))
    refusal_of(found, "search-index", "`files` lacks texts.jsonl or offsets.npy", index, "text")


def test_moved_files_are_found(index, tmp_path):
    """An index holds its texts, and its model may be given."""
    wanted = found(index, "text")
    (tmp_path / "texts.txt").unlink()
    shutil.move(tmp_path / "folder", tmp_path / "moved")
    shutil.copytree(index, tmp_path / "copied")
    with pytest.raises(ProjectError, match="the model of the index is missing") as caught:
        found(tmp_path / "copied", "text")
    assert caught.value.hint == "if the model was moved, pass its folder as --model"
    assert found(tmp_path / "copied", "text", model=str(tmp_path / "moved")) == wanted


def test_texts_that_are_edited_while_they_are_encoded_are_refused(request_of, monkeypatch):
    right = job._encode_shares

    def edited(request):
        shares = right(request)
        Path(request.texts).write_text("other\n" * len(SOURCE))
        return shares

    monkeypatch.setattr(job, "_encode_shares", edited)
    refusal_of(run, "search-index", "the texts were edited while they were encoded", request_of)
    assert not Path(request_of.output).exists()


def test_the_prompts_of_the_model_are_before_texts_and_queries(request_of, model_folder, tmp_path):
    (model_folder / "config_sentence_transformers.json").write_text(json.dumps(PROMPTS))
    assert run(request_of)["prompt"] == "b "
    index = tmp_path / "index"
    encoder = Encoder.load(model_folder, normalize=True)
    scores = encoder.encode([f"b {text}" for text in SOURCE]) @ encoder.encode(["a text"])[0]
    assert found(index, "text", top=1)[0]["score"] == pytest.approx(scores.max(), abs=2e-6)
    scores = encoder.encode([f"b {text}" for text in SOURCE]) @ encoder.encode(["text"])[0]
    assert found(index, "text", top=1, prompt_text="")[0]["score"] == pytest.approx(scores.max(), abs=2e-6)
    with pytest.raises(ProjectError, match=r"no prompt 'title' \(prompts: passage, query\)"):
        found(index, "text", prompt="title")


@pytest.mark.e2e
def test_the_commands_of_the_page(model_folder, tmp_path, monkeypatch, capsys, warm):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_folder, "embedder")
    Path("notes.txt").write_text("\n".join(SOURCE), encoding="utf-8")
    rows = [{"query": text, "positive": SOURCE[place - 1]} for place, text in enumerate(SOURCE)]
    Path("pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    Path("questions.txt").write_text("the model\n\ntext\n", encoding="utf-8")
    commands = re.findall(r"^neobert-launch (.*)$", PAGE.read_text("utf-8"), re.M)
    for command in commands:
        words = shlex.split(command)
        if words[-2:-1] == ["<"]:
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(words[-1]).read_bytes())))
            words = words[:-2]
        capsys.readouterr()
        assert app.run(words) == EXIT_OK, command
        if "--json" in words:
            report = json.loads(capsys.readouterr().out)
    triples = [json.loads(line) for line in Path("triples.jsonl").read_text("utf-8").splitlines()]
    assert any("negative_1" in row for row in triples)
    assert [result["query"] for result in report["results"]] == ["the model", "text"]
    assert {len(result["found"]) for result in report["results"]} == {3}
    assert app.run(["search", "notes", " "]) == EXIT_USAGE
    assert app.run(["search", "embedder", "text"]) == EXIT_USAGE
    assert app.run(["search", "nowhere", "text"]) == EXIT_USAGE
    assert (
        "create one with `neobert-launch encode MODEL TEXTS --index "
        in capsys.readouterr().err.splitlines()[-1]
    )
    assert app.run(["encode", "embedder", "notes.txt", "--index", "a", "--output", "b.npy"]) == EXIT_USAGE
    assert "--output and --index are both set" in capsys.readouterr().err
