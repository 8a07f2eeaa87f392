"""Joined parts in an object store, moto's S3 on loopback: throttled, truncated, replaced and lost objects."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from neobert.config.schema import DatasetConfig, RunConfig
from neobert.data.sources.prepared import joined_folder, remote_copy_folder
from neobert.data.store import remote
from neobert.data.store.join import join
from neobert.data.store.part import prepare_part
from neobert.data.store.prepare import prepare
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.runfiles.prepared_parts import PartNumber
from tests.data.conftest import Configure, sentences, write_jsonl

URL = "s3://texts/prepared"
REASON = "install s3fs and moto[server] to test object stores"


class Throttled:
    """S3 that answers the first GETs of an object with SlowDown."""

    def __init__(self, application: Any) -> None:
        self.application, self.left = application, {}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        name = environ["PATH_INFO"].rpartition("/")[2]
        if environ["REQUEST_METHOD"] == "GET" and self.left.get(name, 0) > 0:
            self.left[name] -= 1
            start_response("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>"]
        return self.application(environ, start_response)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Throttled, int]]:
    pytest.importorskip("s3fs", reason=REASON)
    moto = pytest.importorskip("moto.server", reason=REASON)
    from werkzeug.serving import make_server

    throttled = Throttled(moto.DomainDispatcherApplication(moto.create_backend_app))
    running = make_server("127.0.0.1", 0, throttled, threaded=True)
    thread = Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield throttled, running.server_port
    running.shutdown()
    thread.join()


@pytest.fixture
def store(server: tuple[Throttled, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty bucket."""
    import s3fs

    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server[1]}",
    }.items():
        monkeypatch.setenv(name, value)
    found = s3fs.S3FileSystem()
    found.mkdir("texts")
    yield found
    server[0].left.clear()
    found.invalidate_cache()
    found.rm("texts", recursive=True)


@pytest.fixture
def prepared(store: Any, configure: Configure, tmp_path: Path) -> tuple[RunConfig, RunConfig]:
    """Return a run on joined parts, and one on their copy in the store."""
    for number in range(3):
        write_jsonl(tmp_path / "text" / f"{number}.jsonl", sentences(60, number))
    config = configure(dataset__path=str(tmp_path / "text"), dataset__eval_samples=9)
    for number in (1, 2):
        prepare_part(config, tmp_path / "parts", PartNumber(number, 2))
    join(tmp_path / "parts")
    store.put(str(tmp_path / "parts") + "/", URL, recursive=True)
    keys: dict[str, Any] = {
        "streaming_read_retries": 2,
        "streaming_read_retry_backoff_seconds": 0.01,
        "cache_dir": str(tmp_path / "cache"),
    }
    local, copied = (
        replace(config, dataset=replace(config.dataset, path=path, **keys))
        for path in (str(tmp_path / "parts"), URL)
    )
    return local, copied


def assert_same(one: RunConfig, other: RunConfig) -> None:
    left, right = prepare(one), prepare(other)
    every = np.arange(len(left.train))
    assert left.fingerprint == right.fingerprint
    assert left.train.gather(every).ids.tolist() == right.train.gather(every).ids.tolist()


def refused(config: RunConfig, says: str) -> ProjectError:
    with pytest.raises(ProjectError) as caught:
        prepare(config)
    assert says in caught.value.message
    assert "\n" not in caught.value.message
    assert (caught.value.code, caught.value.exit_code) == ("DAT010", EXIT_TRAINING_FAILED)
    assert joined_folder(config.dataset) is None
    return caught.value


def test_parts_of_a_throttled_store_are_copied_once(prepared, store, server):
    local, copied = prepared
    server[0].left |= {"manifest.json": 1, "train.tokens": 3, "tokenizer.json": 1}
    assert_same(local, copied)
    assert server[0].left == {"manifest.json": 0, "train.tokens": 0, "tokenizer.json": 0}
    store.rm(URL, recursive=True)
    assert_same(local, copied)


def test_a_store_that_stays_throttled_is_one_sentence(prepared, server, store, monkeypatch):
    _, copied = prepared
    monkeypatch.setattr(type(store), "retries", 1)  # its own, with pauses of seconds
    server[0].left["train.tokens"] = 10**6
    assert "start again" in refused(copied, "cannot be read: ").hint


def test_truncated_replaced_and_lost_objects_are_one_sentence_each(prepared, store):
    local, copied = prepared
    place = f"{URL}/part-1-of-2/train.tokens"
    content = store.cat_file(place)
    store.pipe_file(place, content[:-2])
    assert refused(copied, f"has {len(content) - 2:,} bytes, but the manifest").place == place
    store.pipe_file(place, content[:-2] + b"\x01\x00")
    refused(copied, "does not match its checksum")
    store.rm_file(place)
    store.invalidate_cache()
    assert refused(copied, "does not exist").place == place
    store.pipe_file(place, content)
    store.invalidate_cache()
    assert_same(local, copied)


def test_a_copy_that_was_interrupted_reads_complete_files_once(prepared, store):
    local, copied = prepared
    store.rm_file(f"{URL}/part-2-of-2/train.offsets")
    refused(copied, "does not exist")
    folder = remote_copy_folder(URL, copied.dataset)
    kept = {path: path.stat().st_mtime_ns for path in folder.rglob("*.tokens")}
    source = Path(local.dataset.path, "part-2-of-2", "train.offsets")
    store.pipe_file(f"{URL}/part-2-of-2/train.offsets", source.read_bytes())
    store.invalidate_cache()
    assert_same(local, copied)
    assert kept
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.parametrize(
    "name", ["../x", "part-1-of-2/../x", "/etc/passwd", "x/train.tokens", "train.tokens"]
)
def test_a_manifest_names_files_of_parts_only(prepared, store, name):
    _, copied = prepared
    manifest = json.loads(store.cat_file(f"{URL}/manifest.json"))
    folder, _, file = name.rpartition("/")
    manifest["parts"][0] = {
        "folder": folder,
        "splits": {"train": {"files": {file: {"bytes": 1, "sha256": ""}}}},
    }
    store.pipe_file(f"{URL}/manifest.json", json.dumps(manifest).encode())
    with pytest.raises(ProjectError, match="not the manifest of joined parts"):
        prepare(copied)


def test_the_cache_is_bounded(tmp_path):
    gib = 1 << 30
    folders = [tmp_path / name for name in "abc"]
    for place, folder in enumerate(folders[:2]):
        folder.mkdir()
        (folder / "manifest.json").write_text("{}")
        with (folder / "train.tokens").open("wb") as file:
            file.truncate(gib)

        os.utime(folder / "manifest.json", (place, place))
    remote.make_room(folders[2], gib, None)
    remote.make_room(folders[2], gib, 3.1)
    assert all(folder.exists() for folder in folders[:2])
    remote.make_room(folders[2], gib, 2.1)
    assert [folder.exists() for folder in folders[:2]] == [False, True]
    with pytest.raises(ProjectError, match=r"has 1\.0 GiB \(dataset\.cache_limit_gib 0\.5\)") as caught:
        remote.make_room(folders[2], gib, 0.5)
    assert (caught.value.code, caught.value.hint) == ("DAT009", "raise dataset.cache_limit_gib to 1.1")


def test_a_store_without_its_package_is_one_sentence(configure):
    with pytest.raises(ProjectError, match="Protocol not known") as caught:
        remote.fetch(DatasetConfig(path="nostore://x/y", cache_dir=configure().dataset.cache_dir))
    assert "s3fs" in caught.value.hint
