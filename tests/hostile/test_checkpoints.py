"""Checkpoints from anybody: they run no code, nothing outside of them is read, an error is one sentence."""

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from neobert.errors import ProjectError
from neobert.runfiles.checkpoint import manifest
from neobert.runfiles.checkpoint.folders import find_checkpoint, find_checkpoint_and_rejected
from neobert.runfiles.checkpoint.manifest import verify_checkpoint
from neobert.training.checkpoint.publish import publish
from neobert.training.checkpoint.shards import ShardReader, read_shards, write_shards
from tests.refusals import refusal_of
from tests.training.conftest import corpus, read_lines, train, write_run

__all__ = ["corpus"]

# torch says that it reads with one process, as it is to.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

LAST = "10"
ONE_SENTENCE = 600  # characters


class Payload:
    """Pickled, it makes the file of that name when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, corpus) -> Path:
    """A finished run of 10 steps with checkpoints 5 and 10."""
    trainer = {"trainer": {"max_steps": 10, "eval_steps": 0, "logging_steps": 1}}
    run_dir = write_run(tmp_path_factory.mktemp("saved") / "run", corpus, trainer)
    train(run_dir)
    return run_dir


@pytest.fixture(scope="module")
def resumed_loss(saved, corpus, tmp_path_factory) -> float:
    """The loss of step 11 of a run that nobody tampered with."""
    return resume(copied(saved, tmp_path_factory.mktemp("intact") / "run", corpus))


def copied(saved: Path, run_dir: Path, corpus: dict[str, str]) -> Path:
    """Copy the run for one more step, under the schedule that it had."""
    shutil.copytree(saved, run_dir, symlinks=True)
    more = {"max_steps": 11, "eval_steps": 0, "logging_steps": 1, "save_steps": 50}
    return write_run(run_dir, corpus, {"trainer": more, "scheduler": {"total_steps": 10}})


def resume(run_dir: Path) -> float:
    assert train(run_dir) == 0
    return read_lines(run_dir / "metrics.jsonl")[-1]["train/loss"]


def reseal(folder: Path, **changes: object) -> None:
    """Write a manifest for what the folder holds now, with a digest that fits."""
    kept = json.loads((folder / "checkpoint.json").read_text())
    (folder / "checkpoint.json").unlink()
    manifest.seal_checkpoint(folder, kept["step"], kept["config_digest"], kept["created_utc"])
    if changes:
        content = json.loads((folder / "checkpoint.json").read_text()) | changes
        del content["sha256"]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        (folder / "checkpoint.json").write_text(json.dumps(content | {"sha256": digest}))


def add_index(folder: Path, trap: Path) -> None:
    zeros = {name: torch.zeros_like(each) for name, each in load_file(folder / "model.safetensors").items()}
    save_file(zeros, trap.parent / "zeros.safetensors")
    index = {"weight_map": {"a": str(trap.parent / "zeros.safetensors")}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def add_pickled_metadata(folder: Path, trap: Path) -> None:
    (folder / "trainer_state" / "optimizer").mkdir()
    (folder / "trainer_state" / "optimizer" / ".metadata").write_bytes(pickle.dumps(Payload(trap)))


def add_pickled_shard(folder: Path, trap: Path) -> None:
    """Metadata as torch writes it, which says that an item is bytes: torch unpickles those."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

    shards = folder / "trainer_state" / "optimizer"
    shards.mkdir()
    content = pickle.dumps(Payload(trap))
    (shards / "__0_0.distcp").write_bytes(content)
    with safe_open(folder / "trainer_state" / "optimizer.safetensors", framework="pt") as file:
        names = list(file.keys())
    places = {MetadataIndex(name): _StorageInfo("__0_0.distcp", 0, len(content)) for name in names}
    metadata = Metadata(dict.fromkeys(names, BytesStorageMetadata()), storage_data=places)
    (shards / ".metadata").write_bytes(pickle.dumps(metadata))


def pickle_in_place_of(name: str):
    def tamper(folder: Path, trap: Path) -> None:
        (folder / name).write_bytes(pickle.dumps(Payload(trap)))

    return tamper


def json_in_place_of(name: str, content: object):
    def tamper(folder: Path, trap: Path) -> None:
        (folder / name).write_text(json.dumps(content))

    return tamper


def change_state(key: str, value: object):
    def tamper(folder: Path, trap: Path) -> None:
        path = folder / "trainer_state" / "state.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return tamper


HOSTILE_CONFIG = {"trainer": {"gradient_accumulation_steps": []}, "\x1b[31m": "\x07", "model": 3}
TAMPERED = {
    "index": add_index,
    "metadata": add_pickled_metadata,
    "shard": add_pickled_shard,
    "weights": pickle_in_place_of("model.safetensors"),
    "optimizer": pickle_in_place_of("trainer_state/optimizer.safetensors"),
    "generators": pickle_in_place_of("trainer_state/rng_rank0.safetensors"),
    "state": pickle_in_place_of("trainer_state/state.json"),
    "list": json_in_place_of("trainer_state/state.json", []),
    "config": json_in_place_of("trainer_state/resolved.json", HOSTILE_CONFIG),
    "step": change_state("step", 3),
    "cursor": change_state("cursor", {"epoch": -1, "window": "x", "index": None, "stream": 3}),
    "half a cursor": change_state("cursor", {"epoch": 0, "index": 0, "stream": None, "packer": 4}),
    "later": change_state(
        "cursor", {"epoch": 0, "window": 0, "index": 0, "stream": None, "packer": 4, "shard": 3}
    ),
    "loss": change_state("loss_window", {"loss_sum": "x", "num_targets": 1}),
    "identity": change_state("identity", ["data"]),
    "time": change_state("trained_s", 10**400),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_checkpoint_is_data(saved, corpus, resumed_loss, tmp_path, name):
    run_dir, trap = copied(saved, tmp_path / "run", corpus), tmp_path / "trap"
    folder = run_dir / "checkpoints" / LAST
    TAMPERED[name](folder, trap)
    reseal(folder)
    if name == "index":  # whole weights are read, and never what an index names
        assert resume(run_dir) == resumed_loss
        return
    with pytest.raises(ProjectError) as refusal:
        resume(run_dir)
    assert not trap.exists(), "a checkpoint ran code"
    assert len(refusal.value.message) < ONE_SENTENCE
    assert refusal.value.message.isprintable()
    assert refusal.value.code in ("CKP007", "EXP004")
    assert refusal.value.hint


@pytest.mark.parametrize("name", ["index", "metadata", "shard"])
def test_a_file_that_the_manifest_does_not_list_is_refused(saved, corpus, tmp_path, name):
    run_dir, trap = copied(saved, tmp_path / "run", corpus), tmp_path / "trap"
    TAMPERED[name](run_dir / "checkpoints" / LAST, trap)
    shutil.rmtree(run_dir / "checkpoints" / "5")  # it would be resumed from that
    with pytest.raises(ProjectError, match="the checkpoint's manifest does not list") as refusal:
        resume(run_dir)
    assert not trap.exists(), "a checkpoint ran code"
    assert "move these entries out" in refusal.value.hint


def refused_or(act: Callable[[], Any]) -> Any:
    """Return what comes of an act, and None where it is refused as it should be."""
    try:
        return act()
    except ProjectError as error:
        refusal = error
    assert refusal.code == "CKP007"
    assert refusal.message.isprintable()
    return None


# Below, checkpoints of a few bytes: `verify` decides what a resume reads.

FILES = {"model.safetensors": b"weights" * 5, "trainer_state/state.json": b"{}"}


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """Checkpoints 5 and 10."""

    def fill(folder: Path) -> None:
        for name, content in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)

    root = tmp_path_factory.mktemp("published") / "checkpoints"
    for step in (5, 10):
        publish(root, step, "0" * 64, "2026-01-01T00:00:00+00:00", fill)
    return root


@pytest.fixture
def small(published, tmp_path, monkeypatch):
    """Copy those checkpoints, in place of what an example has left; return the newest."""
    monkeypatch.setattr(manifest, "sync_to_disk", lambda _: None)  # nothing here is to outlive a power cut

    def copy() -> Path:
        shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
        shutil.copytree(published, tmp_path / "checkpoints", symlinks=True)
        return tmp_path / "checkpoints" / LAST

    return copy


PART = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
KINDS = {
    "file": lambda path: path.write_bytes(b"x"),
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "link out": lambda path: path.symlink_to("/etc/passwd"),
    "loop": lambda path: path.symlink_to(path.name),
    "link": lambda path: path.symlink_to(path.parent / "model.safetensors"),
}


@settings(max_examples=60)
@given(part=PART, kind=st.sampled_from([*KINDS]), below=st.sampled_from(["", "trainer_state"]))
def test_anything_beyond_the_manifest_is_refused_by_name(small, part, kind, below):
    folder = small()
    path = folder / below / part
    if part in (".", "..") or path.exists() or len(part.encode()) > 255 or part == ".checkpoint.json":
        return
    KINDS[kind](path)
    with pytest.raises(ProjectError, match="the checkpoint's manifest does not list") as refusal:
        find_checkpoint_and_rejected(folder.parent, "auto")
    assert refusal.value.message.isprintable()
    assert part.isprintable() is (part in refusal.value.message)
    shutil.rmtree(path) if kind == "folder" else path.unlink()
    assert find_checkpoint(folder.parent, "auto")[1].step == 10, "the way out leads to the newest checkpoint"


@pytest.mark.parametrize("name", [*FILES, "checkpoint.json", "trainer_state"])
def test_a_link_out_of_the_checkpoint_is_not_followed(small, tmp_path, name):
    folder = small()
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ProjectError) as refusal:
        verify_checkpoint(folder)
    assert refusal.value.code == "CKP007"
    assert ("link out of" in refusal.value.message) is (name != "trainer_state")


@pytest.mark.parametrize("name", ["/etc/hostname", "../5/model.safetensors", "trainer_state/../a", ""])
def test_a_manifest_names_nothing_outside(small, name, monkeypatch):
    folder = small()
    files = {name: {"size": 35, "sha256": hashlib.sha256(FILES["model.safetensors"]).hexdigest()}}
    reseal(folder, files=files)
    monkeypatch.setattr(manifest, "file_sha256", lambda path: pytest.fail(f"{path} was read"))
    refusal_of(verify_checkpoint, "CKP007", "is missing", folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = ["schema_version", "step", "config_digest", "created_utc", "metrics", "files", "kind"]


@settings(max_examples=50)
@given(changes=st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=2))
def test_a_sealed_manifest_of_any_values_verifies_or_is_refused(small, changes):
    folder = small()
    reseal(folder, **changes)
    found = refused_or(lambda: verify_checkpoint(folder))
    assert found is None or (type(found.step) is int and "files" not in changes)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"3", b"null", b"{}", b'{"sha256": 3}', b"\xff"])
def test_a_manifest_that_is_none_is_refused(small, content):
    folder = small()
    (folder / "checkpoint.json").write_bytes(content)
    refusal_of(verify_checkpoint, "CKP007", "checkpoint.json is damaged", folder)


def test_a_pipe_in_place_of_the_manifest_is_not_opened(small):
    folder = small()
    (folder / "checkpoint.json").unlink()
    os.mkfifo(folder / "checkpoint.json")
    refusal_of(verify_checkpoint, "CKP007", "damaged", folder)


def test_what_a_kill_left_of_a_rewritten_manifest_is_no_stray(small):
    folder = small()
    (folder / ".checkpoint.json").write_text("{")
    assert verify_checkpoint(folder).step == 10


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    """Two tensors as a sharded run saves them."""
    folder = tmp_path_factory.mktemp("shards") / "optimizer"
    write_shards(folder, {"exp_avg/a": torch.arange(12.0).view(3, 4), "step/a": torch.tensor(3.0)}, None)
    return folder


def test_shards_are_read_without_torch_s_unpickler(shards, monkeypatch):
    monkeypatch.setattr(pickle, "load", lambda *_: pytest.fail("torch unpickled the metadata"))
    reader = ShardReader(shards)
    targets = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in reader.shapes().items()}
    read_shards(reader, targets)
    assert torch.equal(targets["exp_avg/a"], torch.arange(12.0).view(3, 4))
    assert targets["step/a"] == 3


def test_shards_are_written_without_waiting_for_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: pytest.fail("torch waits for training"))
    write_shards(tmp_path, {"exp_avg/a": torch.ones(3)}, None)
    assert ShardReader(tmp_path).shapes() == {"exp_avg/a": (torch.Size([3]), torch.float32)}


@settings(max_examples=150)
@given(position=st.integers(0, 10**6), byte=st.integers(0, 255), end=st.integers(0, 10**6), cut=st.booleans())
def test_damaged_metadata_is_refused_or_says_the_same(shards, tmp_path, position, byte, end, cut):
    folder = tmp_path / "optimizer"
    shutil.copytree(shards, folder, dirs_exist_ok=True)
    content = bytearray((shards / ".metadata").read_bytes())
    content[position % len(content)] = byte
    (folder / ".metadata").write_bytes(content[: end % len(content)] if cut else content)

    def read() -> None:
        reader = ShardReader(folder)
        read_shards(reader, {name: torch.zeros(shape) for name, (shape, _) in reader.shapes().items()})

    refused_or(read)


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "..", "a/b", ""])
def test_shards_outside_of_their_folder_are_refused(shards, tmp_path, path):
    from torch.distributed.checkpoint import FileSystemReader

    metadata = FileSystemReader(shards).read_metadata()
    for info in metadata.storage_data.values():
        info.relative_path = path
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    refusal_of(ShardReader, "CKP007", "outside the folder", tmp_path)
