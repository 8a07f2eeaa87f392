"""Jobs that encode files: formats, shares of several processes, continuation after a kill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launcher.cli import app
from neobert.encoding import Encoder, job
from neobert.encoding.job import Request, encode_share, run
from neobert.encoding.shards import Shards
from neobert.encoding.texts import open_texts
from neobert.errors import ProjectError

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
        Encoder, "encode", lambda self, texts: encoded.append(len(texts)) or right(self, texts)
    )
    report = run(request_of)
    assert (sum(encoded), report["texts"]) == (30 - 7 * num_done, 30)
    assert Path(request_of.output).read_bytes() == Path(whole.output).read_bytes()


@pytest.mark.parametrize("change", ["texts", "model", "settings"])
def test_shards_of_another_job_are_refused(request_of, model_folder, monkeypatch, change):
    monkeypatch.setattr(job, "_shares", lambda *_: _interrupt())
    with pytest.raises(KeyboardInterrupt):
        run(request_of)
    if change == "texts":
        Path(request_of.texts).write_text("other\n", encoding="utf-8")
    elif change == "model":
        config = json.loads((model_folder / "config.json").read_text())
        (model_folder / "config.json").write_text(json.dumps(config | {"rope_theta": 20_000.0}))
    else:
        request_of = replace(request_of, max_length=9)
    with pytest.raises(ProjectError, match=r"shards belong to another job: .* changed"):
        run(request_of)


def _interrupt():
    raise KeyboardInterrupt


def test_ranks_share_the_shards(request_of, tmp_path):
    run(replace(request_of, output=str(tmp_path / "one.npy")))
    shards = Shards(Path(request_of.output))
    shards.begin({})
    shares = [encode_share(request_of, rank, 2) for rank in (1, 0)]
    assert [share.num_shards for share in shares] == [5, 5]
    assert 0 < shares[0].tokens < shares[1].tokens
    shards.merge(5, 32)
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


@pytest.mark.parametrize("name", ["a.jsonl", "a.tsv", "a.parquet", "folder"])
def test_texts_of_every_format(tmp_path, name):
    texts = open_texts(written(tmp_path / name), "content", "test")
    assert list(texts) == list(texts) == TEXTS
    assert texts.identity() == texts.identity()


def test_empty_lines_keep_their_place(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\r\nthree")
    assert list(open_texts(tmp_path / "a.txt", None, "train")) == ["one", "", "three"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "holds no texts"),
        ("a.bin", "x", "is not one of"),
        ("missing.txt", None, "does not exist"),
    ],
)
def test_what_holds_no_texts_is_refused(request_of, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ProjectError, match=message):
        run(replace(request_of, texts=str(tmp_path / name)))


def test_an_output_of_another_kind_is_refused(request_of):
    with pytest.raises(ProjectError, match=r"ends in \.csv"):
        run(replace(request_of, output="a.csv"))
