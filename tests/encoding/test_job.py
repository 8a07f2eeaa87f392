"""Jobs that encode files: formats, shares of several processes, continuation after a kill."""

import errno
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launcher.cli import app
from launcher.commands import text_jobs
from neobert.atomic_write import write_atomically
from neobert.data.sources import hub
from neobert.encoding import Encoder, job, placement
from neobert.encoding import shards as shards_module
from neobert.encoding.counts import TextCounts
from neobert.encoding.job import run
from neobert.encoding.request import Request
from neobert.encoding.shards import Shards
from neobert.encoding.share import encode_share
from neobert.encoding.texts import open_texts
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from tests.refusals import refusal_of

TEXTS = [f"{'the ' * (number % 9)}model reads {'' if number % 5 else chr(34)} text" for number in range(30)]


@pytest.fixture
def request_of(tmp_path: Path, model_folder: Path) -> Request:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return Request(str(model_folder), str(texts), str(tmp_path / "out.npy"), texts_per_shard=7)


def test_a_job_writes_what_the_encoder_returns(request_of, model_folder):
    report = run(request_of)
    assert (report["embeddings"], report["truncated"], report["pooling"]) == ([30, 32], 0, "avg")
    wanted = Encoder.load(model_folder).encode(TEXTS)
    assert np.allclose(np.load(request_of.output), wanted, atol=1e-6)
    assert [file.name for file in Path(request_of.output).parent.glob("*out*")] == ["out.npy"]


def test_parquet_holds_the_same(request_of, tmp_path):
    run(request_of)
    run(replace(request_of, output=str(tmp_path / "out.parquet")))
    rows = pq.read_table(tmp_path / "out.parquet")["embedding"].combine_chunks()
    found = rows.flatten().to_numpy().reshape(len(rows), -1)
    assert np.array_equal(found, np.load(request_of.output))


@pytest.mark.parametrize("num_done", [0, 1, 3])
def test_a_killed_job_continues_to_the_same_bytes(request_of, tmp_path, monkeypatch, num_done):
    whole = replace(request_of, output=str(tmp_path / "whole.npy"))
    run(whole)
    kept, written = Shards.write, []

    def write(shards, number, embeddings, counts):
        if len(written) == num_done:
            raise KeyboardInterrupt
        kept(shards, number, embeddings, counts)
        written.append(number)

    monkeypatch.setattr(Shards, "write", write)
    with pytest.raises(KeyboardInterrupt):
        run(request_of)
    assert not Path(request_of.output).exists()
    monkeypatch.undo()
    encoded = []
    right = Encoder.encode
    monkeypatch.setattr(
        Encoder, "encode", lambda self, texts, *rest: encoded.append(len(texts)) or right(self, texts, *rest)
    )
    report = run(request_of)
    assert (sum(encoded), report["texts"]) == (30 - 7 * num_done, 30)
    assert Path(request_of.output).read_bytes() == Path(whole.output).read_bytes()


@pytest.mark.parametrize("change", ["texts", "model", "settings", "declared length"])
def test_shards_of_another_job_are_refused(request_of, model_folder, monkeypatch, change):
    kept = Shards.write
    monkeypatch.setattr(Shards, "write", lambda *arguments: (kept(*arguments), _interrupt()))
    with pytest.raises(KeyboardInterrupt):
        run(request_of)
    if change == "texts":
        Path(request_of.texts).write_text("other\n", encoding="utf-8")
    elif change == "model":
        config = json.loads((model_folder / "config.json").read_text())
        (model_folder / "config.json").write_text(json.dumps(config | {"rope_theta": 20_000.0}))
    elif change == "declared length":
        (model_folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9}))
    else:
        request_of = replace(request_of, max_length=9)
    with pytest.raises(ProjectError, match=r"shards belong to another job: .* changed") as caught:
        run(request_of)
    assert ("max_length changed from null to 9" in caught.value.message) == (change == "settings")


def _interrupt():
    raise KeyboardInterrupt


def test_two_jobs_do_not_write_one_output(request_of, monkeypatch):
    """The first to end would remove the shards under the other."""
    running = []
    monkeypatch.setattr(job, "_encode_shares", lambda request: running.append(request) or run(request))
    refusal_of(run, "encode-running", "another process is writing this output", request_of)
    assert running == [replace(request_of, prompt_text="")]
    monkeypatch.undo()
    assert run(request_of)["texts"] == 30


def test_a_job_that_wrote_no_shard_leaves_nothing_to_continue(request_of, monkeypatch):
    monkeypatch.setattr(job, "_encode_shares", lambda *_: _interrupt())
    with pytest.raises(KeyboardInterrupt):
        run(request_of)
    monkeypatch.undo()
    folder = Shards(Path(request_of.output)).folder
    assert not folder.exists()
    folder.mkdir()  # as a job leaves it that was killed
    (folder / "manifest.json").write_text('{"texts": "another"}')
    assert run(request_of)["texts"] == 30


@pytest.mark.parametrize("name", ["manifest.json", "00002.npy", "out.npy", "out.parquet"])
@pytest.mark.parametrize(
    ("number", "message", "way"),
    [(errno.ENOSPC, "the disk is full", "free disk space"),
     (errno.EROFS, f"the output cannot be written: {os.strerror(errno.EROFS)}", "fix the cause")],
)  # fmt: skip
def test_a_failed_write_names_the_file_and_the_same_command_continues(
    request_of, tmp_path, monkeypatch, name, number, message, way
):
    if name.startswith("out"):
        request_of = replace(request_of, output=str(tmp_path / name))

    def fail(path, content, *_):
        if isinstance(content, list) or path.name == name:  # a merge is given the shards
            raise OSError(number, os.strerror(number))
        write_atomically(path, content)

    monkeypatch.setattr(shards_module, "write_atomically", fail)
    for suffix in (".npy", ".parquet"):
        monkeypatch.setitem(shards_module.WRITERS, suffix, fail)
    with pytest.raises(ProjectError) as caught:
        run(request_of)
    error, folder = caught.value, Shards(Path(request_of.output)).folder
    kept = len(list(folder.glob("*.npy")))
    assert error.message == f"{message} (finished shards kept: {kept})"
    assert error.exit_code == EXIT_TRAINING_FAILED
    assert error.place == (request_of.output if name.startswith("out") else str(folder / name))
    assert error.hint == f"{way}; the same command then continues the job"
    assert folder.exists() == (name != "manifest.json")
    monkeypatch.undo()
    num_encoded = []
    right = Encoder.encode
    monkeypatch.setattr(
        Encoder, "encode", lambda self, texts, *more: num_encoded.append(1) or right(self, texts, *more)
    )
    assert run(request_of)["texts"] == 30
    assert len(num_encoded) + kept == 5


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_shards_with_a_damaged_manifest_are_refused(tmp_path, content):
    shards = Shards(tmp_path / "out.npy")
    with shards.lock({"max_length": 9}):
        shards.write(0, np.zeros((1, 2), np.float32), TextCounts())
    (shards.folder / "manifest.json").write_text(content)
    with pytest.raises(ProjectError, match=r"manifest\.json cannot be read"), shards.lock({"max_length": 9}):
        pass


@pytest.mark.parametrize("end", [shutil.rmtree, lambda folder: folder.rename(folder.with_name("moved"))])
def test_a_folder_that_its_job_removed_meanwhile_is_created_again(tmp_path, monkeypatch, end):
    shards, lock = Shards(tmp_path / "out.npy"), fcntl.flock

    def remove_and_lock(descriptor, operation):
        monkeypatch.undo()
        end(shards.folder)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)
    with shards.lock({}):
        assert (shards.folder / "manifest.json").is_file()


def test_ranks_share_the_shards(request_of, tmp_path):
    run(replace(request_of, output=str(tmp_path / "one.npy")))
    shards = Shards(Path(request_of.output))
    with shards.lock({}):
        shares = [encode_share(request_of, rank, 2) for rank in (1, 0)]
        shards.merge(5, partial(shards_module.write_arrays, width=32))
    assert [share.num_shards for share in shares] == [5, 5]
    assert 0 < shares[0].tokens < shares[1].tokens
    assert Path(request_of.output).read_bytes() == (tmp_path / "one.npy").read_bytes()


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_the_command_encodes_in_several_processes(request_of, tmp_path, capsys):
    words = ["encode", request_of.folder, request_of.texts, "-o", request_of.output, "--processes", "2",
             "--texts-per-shard", "7", "--output-format", "json"]  # fmt: skip
    assert app.run(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["texts"], report["processes"]) == (30, 2)
    run(replace(request_of, output=str(tmp_path / "one.npy")))
    assert np.allclose(np.load(request_of.output), np.load(tmp_path / "one.npy"), atol=1e-6)


def written(path: Path) -> Path:
    rows = [{"content": text, "id": number} for number, text in enumerate(TEXTS)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".tsv":
        lines = ["id\tcontent", *(f"{row['id']}\t{row['content']}" for row in rows)]
        path.write_text("\ufeff" + "\n".join(lines) + "\n", encoding="utf-8")
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.mkdir()
        written(path / "test.jsonl")
    return path


@pytest.mark.parametrize(
    ("name", "split"), [("a.jsonl", "train"), ("a.tsv", "train"), ("a.parquet", "train"), ("folder", "test")]
)
def test_texts_of_every_format(tmp_path, name, split):
    texts = open_texts(written(tmp_path / name), "content", split)
    assert list(texts) == list(texts) == TEXTS
    assert texts.identity() == texts.identity()


def test_empty_lines_keep_their_place(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\r\nthree")
    assert list(open_texts(tmp_path / "a.txt", None, "train")) == ["one", "", "three"]


def test_the_files_of_a_folder_that_are_not_read_are_reported(request_of, tmp_path, caplog):
    folder = written(tmp_path / "rows")
    for name in ("notes.csv", "page.xml"):
        (folder / name).write_text("body\nleft out\n")
    with caplog.at_level("WARNING"):
        report = run(replace(request_of, texts=str(folder), split="test"))
    (message,) = (each for each in caplog.messages if ".csv" in each)
    assert message.endswith("text, sentence, content); pass these files on their own, with --column")
    assert report["texts"] == 30
    assert report["source"] == f"{folder} (test, 1 file; not read: 1 x .csv, 1 x .xml)"
    assert run(request_of)["source"] == request_of.texts


def test_a_folder_without_text_is_refused_with_what_to_pass(tmp_path):
    with pytest.raises(ProjectError, match="found nothing") as caught:
        open_texts(tmp_path, None, "train")
    assert caught.value.hint == "pass a folder with text"


@pytest.mark.parametrize(
    ("column", "split", "place", "hint"),
    [
        (None, "train", "a.jsonl:1", "set --column to one of the columns: 'body'"),
        ("text", "train", "a.jsonl:1", "set --column to one of the columns: 'body'"),
        ("body", "dev", "--split", "set --split to one of: train"),
    ],
)
def test_errors_of_a_folder_name_the_options_of_the_command(tmp_path, column, split, place, hint):
    (tmp_path / "a.jsonl").write_text('{"body": "a"}\n')
    with pytest.raises(ProjectError) as caught:
        list(open_texts(tmp_path, column, split))
    assert (caught.value.place.endswith(place), caught.value.hint) == (True, hint)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"body": "a"}\n', "none of the columns"),
        ("a.txt", "", "the file has no texts"),
        ("a.bin", "x", "is not in a supported format"),
        ("missing.txt", None, "does not exist"),
    ],
)
def test_what_holds_no_texts_is_refused_before_the_model_is_loaded(
    request_of, tmp_path, monkeypatch, name, content, message
):
    if content is not None:
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(job, "_encode_shares", lambda _: pytest.fail("the model is loaded"))
    with pytest.raises(ProjectError, match=message):
        run(replace(request_of, texts=str(tmp_path / name)))


@pytest.mark.parametrize("model_type", ["bert", "qwen2"])
def test_a_missing_pooling_is_refused_before_the_model_is_loaded(
    model_type, request_of, tmp_path, monkeypatch
):
    folder = tmp_path / "undeclared"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    monkeypatch.setattr(job, "_encode_shares", lambda _: pytest.fail("the model is loaded"))
    monkeypatch.setattr(job, "open_texts", lambda *_: pytest.fail("the texts are read"))
    with pytest.raises(ProjectError, match="declares no pooling") as refusal:
        run(replace(request_of, folder=str(folder), pooling=None))
    assert ("last-token" in refusal.value.hint) == (model_type == "qwen2")


def test_a_pipe_is_refused_for_what_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refusal_of(open_texts, "unusable-texts", "is not a regular file", tmp_path / "pipe", None, "train")


@pytest.mark.parametrize("visible", [0, 2])
def test_the_device_decides_on_the_number_of_processes(request_of, monkeypatch, visible):
    monkeypatch.setattr(placement.torch.cuda, "is_available", lambda: visible > 0)
    monkeypatch.setattr(placement.torch.cuda, "device_count", lambda: visible)
    assert placement.num_processes(None, "cpu") == 1
    assert placement.device_for_rank(0, 1, "cpu") == "cpu"
    if visible:
        assert placement.num_processes(None, None) == 2
        assert placement.device_for_rank(1, 2, "cuda") == "cuda:1"
    else:
        with pytest.raises(ProjectError, match="--device is cuda, but no GPU is visible"):
            run(replace(request_of, device="cuda"))


def test_an_output_of_another_kind_is_refused(request_of):
    refusal_of(run, "encode-output", "a.csv does not end in .npy", replace(request_of, output="a.csv"))


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_the_command_warns_when_much_text_is_cut_off(request_of, capsys):
    words = ["encode", request_of.folder, request_of.texts, "-o", request_of.output, "--max-length", "4"]
    assert app.run(words) == 0
    assert "30 texts exceed 4 tokens; " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("truncated", "texts", "expected"), [(1, 1, "1 of 1 text exceeds 4"), (2, 3, "2 of 3 texts exceed 4")]
)
def test_the_warning_of_lost_text_counts_in_english(truncated, texts, expected, capsys):
    report = {"truncated": truncated, "texts": texts, "max_length": 4, "tokens_lost": 9, "tokens": 4}
    text_jobs.warn_of_lost_text(report)
    assert expected in capsys.readouterr().err
    text_jobs.warn_of_lost_text(report | {"tokens_lost": 9996})
    assert "more than 99.9% of all tokens were cut off" in capsys.readouterr().err


def test_a_name_on_the_hub_without_a_connection_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "is_unreachable", lambda: True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProjectError, match="dataset cannot be opened") as refusal:
        open_texts(Path("owner/absent-data-set"), None, "train")
    assert (refusal.value.place, refusal.value.exit_code) == ("owner/absent-data-set", 2)
    hint = "pass an existing local path, or the correct name of a Hub dataset"
    assert refusal.value.hint == hint
    refusal_of(open_texts, "unusable-texts", "does not exist", Path("absent.txt"), None, "train")


def test_a_name_on_the_hub_gives_the_rows_of_a_split(tmp_path, monkeypatch):
    loaded = datasets.DatasetDict({"test": datasets.Dataset.from_dict({"text": ["a", "b"]})})
    monkeypatch.setattr(hub, "is_unreachable", lambda: False)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, *_, **__: {"owner/name": loaded}[name])
    monkeypatch.chdir(tmp_path)
    assert list(open_texts(Path("owner/name"), "text", "test")) == ["a", "b"]
    for column, split, place, hint in [
        ("body", "test", "owner/name (test)", "set --column to one of the columns: 'text'"),
        ("text", "dev", "--split", "set --split to one of: test"),
    ]:
        with pytest.raises(ProjectError) as refusal:
            open_texts(Path("owner/name"), column, split)
        assert (refusal.value.place, refusal.value.hint, refusal.value.exit_code) == (place, hint, 2)


@pytest.mark.parametrize("split", ["test", "train[:10]"])
@pytest.mark.parametrize(("name", "column"), [("a.txt", None), ("a.jsonl", "content")])
def test_a_split_of_a_single_file_is_refused(tmp_path, name, column, split):
    (tmp_path / name).write_text('{"content": "one"}\n')
    assert len(list(open_texts(tmp_path / name, column, "train"))) == 1
    with pytest.raises(ProjectError) as refusal:
        open_texts(tmp_path / name, column, split)
    assert refusal.value.message == f"the path is a single file, which has no split {split!r}"
    hint = "remove --split, or pass a folder or a Hub dataset"
    assert (refusal.value.hint, refusal.value.exit_code) == (hint, 2)


@pytest.mark.parametrize("name", ["a.txt", "folder"])
def test_a_column_of_plain_text_is_refused(tmp_path, name):
    (tmp_path / "folder").mkdir()
    for file in ("a.txt", "folder/b.txt"):
        (tmp_path / file).write_text("one\n")
    assert list(open_texts(tmp_path / name, None, "train")) == ["one"]
    with pytest.raises(ProjectError, match="is plain text, which has no column 'body'") as refusal:
        open_texts(tmp_path / name, "body", "train")
    assert (refusal.value.hint, refusal.value.exit_code) == ("remove --column, or pass a table", 2)


@pytest.mark.parametrize(
    ("text", "number"),
    [("", 0), ("one", 1), ("one\n", 1), ("one\n\nthree", 3), ("one\r\rthree", 3), ("one\r\ntwo\r\n", 2)],
)
def test_lines_are_counted_as_they_are_read(text, number, tmp_path):
    """The total of the progress."""
    (tmp_path / "a.txt").write_bytes(text.encode())
    texts = open_texts(tmp_path / "a.txt", None, "train")
    assert texts.known_count() == len(list(texts)) == number


LENGTHS_TWICE = """
import torch
from neobert.encoding.placement import device_for_rank

device_for_rank(0, 1, "cpu")
with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON_CREATION):
    for length in [*range(4000, 4040)] * 2:
        torch.nn.functional.gelu(torch.zeros(length, 8))
"""


def test_memory_does_not_grow_with_the_lengths_of_runs():
    """A program that is kept for each length would be found again at the second run of that length."""
    shown = subprocess.run([sys.executable, "-c", LENGTHS_TWICE], capture_output=True, text=True, check=True)
    if "create:" not in shown.stdout:
        pytest.skip("this processor's operators are not those of oneDNN")
    assert shown.stdout.count("create:cache_miss") == 80
    assert "create:cache_hit" not in shown.stdout


FREED = """
import sys
import psutil
import torch
from neobert.encoding.freed_memory import return_freed_memory
from neobert.encoding.placement import device_for_rank

device_for_rank(0, 1, "cpu")
process = psutil.Process()
largest = torch.zeros(30 << 18)
del largest  # which by itself raises the size from which memory is mapped
for num_mib, then in ((10, lambda: None), (2, lambda: return_freed_memory(torch.device("cpu")))):
    held, between = zip(*[(torch.zeros(num_mib << 18), torch.zeros(20_000)) for _ in range(64)])
    used = process.memory_info().rss
    del held
    then()
    print((used - process.memory_info().rss) / (64 * num_mib << 20), file=sys.stderr)
"""


@pytest.mark.child
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_tensors_are_returned_to_the_system():
    """Of 10 MiB at once, smaller ones after a run: the heap would keep them for other lengths."""
    shown = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    assert all(float(line) > 0.9 for line in shown.stderr.splitlines()), shown.stderr
    assert len(shown.stderr.splitlines()) == 2
