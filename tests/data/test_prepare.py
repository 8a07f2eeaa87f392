import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from neobert.config.schema import MixtureCorpus, RunConfig
from neobert.data.sources import file_digests
from neobert.data.sources.file_digests import FileDigests
from neobert.data.store import build, build_lock, split_writer
from neobert.data.store import prepare as preparing
from neobert.data.store.build_lock import build_lock as hold_lock
from neobert.data.store.prepare import prepare
from neobert.data.store.token_store import MANIFEST, TokenStore
from neobert.errors import ProjectError
from neobert.runfiles.cache_folder import cache_folder
from tests.data.conftest import sentences, write_jsonl
from tests.refusals import refusal_of

ROOT = Path(__file__).parents[2]


def refused(config: RunConfig, code: str, says: str) -> ProjectError:
    error = refusal_of(prepare, code, says, config)
    assert error.place
    return error


def segments(text: TokenStore) -> list[list[int]]:
    return [part.tolist() for part in np.split(np.asarray(text.tokens), text.offsets[1:-1])]


def left_behind(config: RunConfig) -> list[str]:
    """Names in the cache, locks and remembered digests aside."""
    folder = cache_folder(config.dataset)
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return [name for name in names if not name.endswith(".lock") and name != ".digests"]


def test_the_prepared_text_is_the_text(configure):
    texts = ["ba go", "fi", "", "ba " * 70, "lula"]
    path = write_jsonl(Path(configure().dataset.cache_dir).parent / "a.jsonl", texts)
    data = prepare(configure(dataset__path=str(path), trainer__per_device_train_batch_size=1))
    tokenizer = data.tokenizer.tokenizer
    found = segments(data.train)
    assert [tokenizer.decode(part, skip_special_tokens=True) for part in found] == [
        "ba go",
        "fi",
        *[" ".join(["ba"] * count) for count in (30, 30, 10)],
        "lula",
    ]
    markers = (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert all((part[0], part[-1]) == markers for part in found)
    assert max(map(len, found)) == 32
    assert data.train.tokens.dtype == np.uint16
    assert data.eval is None
    counts = data.report["train"]
    assert (counts["documents"], counts["empty"], counts["split"], counts["segments"]) == (5, 1, 1, 6)
    assert counts["tokens"] == data.train.num_tokens == sum(map(len, found))
    assert counts["column"] == "text (in a.jsonl)"


def test_the_manifest_describes_what_is_there(configure):
    data = prepare(configure(dataset__eval_samples=20))
    manifest = json.loads((data.folder / MANIFEST).read_text(encoding="utf-8"))
    assert manifest["tokenizer_digest"] == data.tokenizer.digest
    assert (manifest["vocab_size"], manifest["max_length"], manifest["add_special_tokens"]) == (128, 32, True)
    for split, text in (("train", data.train), ("eval", data.eval)):
        described = manifest["splits"][split]
        assert (described["segments"], described["tokens"]) == (len(text), text.num_tokens)
        lengths = np.diff(text.offsets)
        assert text.statistics.mean == pytest.approx(lengths.mean())
        assert text.statistics.std == pytest.approx(lengths.std())
        assert text.statistics.longest == lengths.max()
        for name, file in described["files"].items():
            content = (data.folder / name).read_bytes()
            assert len(content) == file["bytes"]
            assert split_writer.sha256(content).hexdigest() == file["sha256"]
    assert (data.tokenizer_dir / "tokenizer.json").is_file()


def test_what_was_prepared_is_opened_again(configure, monkeypatch):
    first = prepare(configure())
    monkeypatch.setattr(preparing, "build", None)
    second = prepare(configure(trainer__max_steps=7, dataset__num_proc=2))
    assert (second.folder, second.fingerprint) == (first.folder, first.fingerprint)
    assert segments(second.train) == segments(first.train)


CHANGES = [
    {"dataset__max_seq_length": 24},
    {"datacollator__max_length": 24},
    {"tokenizer__max_length": 24},
    {"dataset__min_length": 9},
    {"dataset__long_documents": "truncate"},
    {"dataset__train_split": "train[:100]"},
    {"dataset__eval_samples": 10},
    {"dataset__validation_split": 0.2},
    {"tokenizer__path": None, "tokenizer__vocab_size": 100},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: ",".join(change))
def test_every_option_that_changes_the_text_changes_folder_and_fingerprint(configure, change):
    plain, changed = prepare(configure()), prepare(configure(**change))
    assert changed.folder != plain.folder
    assert changed.fingerprint != plain.fingerprint


def edit_in_place(path: Path) -> None:
    """Change the middle of a file, and set its time back as `rsync --inplace -t` and `tar` do."""
    times, content = path.stat(), path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + content[middle:].replace(b"ba", b"go", 1))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("settled_s", [2.0, -1.0], ids=["new file", "remembered digest"])
def test_text_that_was_edited_in_place_is_prepared_again(configure, tmp_path, monkeypatch, settled_s):
    monkeypatch.setattr(file_digests, "SETTLED_S", settled_s)
    path = write_jsonl(tmp_path / "a.jsonl", sentences(4000))
    config = configure(dataset__path=str(path))
    before = prepare(config)
    edit_in_place(path)
    after = prepare(config)
    assert after.folder != before.folder
    assert after.fingerprint != before.fingerprint


def test_a_file_is_read_again_only_after_it_changed(tmp_path, monkeypatch):
    path, digests, reads = tmp_path / "a.txt", FileDigests(tmp_path / "digests"), []
    path.write_text("text", encoding="utf-8")
    read = file_digests.hashlib.file_digest
    monkeypatch.setattr(file_digests.hashlib, "file_digest", lambda *args: reads.append(1) or read(*args))

    def described(num_reads: int) -> list[object]:
        reads.clear()
        found = digests.describe(path)
        assert len(reads) == num_reads
        return found

    first = described(1)
    assert described(1) == first, "a file as new as this one may change within the resolution of its times"
    monkeypatch.setattr(file_digests, "SETTLED_S", -1)
    assert described(1) == described(0) == first
    path.chmod(0o600)
    assert described(1) == described(0) == first
    (entry,) = (tmp_path / "digests").iterdir()
    entry.write_text("[]", encoding="ascii")
    assert described(1) == first
    edit_in_place(path)
    monkeypatch.setattr(file_digests.Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(OSError))
    assert described(1) == first, "nothing to replace was in it"
    path.unlink()
    refusal_of(digests.describe, "DAT001", "cannot be read", path)


def test_text_is_prepared_into_a_folder_of_its_own(configure, tmp_path, monkeypatch):
    output = tmp_path / "deep" / "prepared"
    first = prepare(configure(), output=output)
    assert first.folder == output
    assert left_behind(configure()) == []
    assert [path.name for path in output.parent.iterdir()] == ["prepared"]
    monkeypatch.setattr(preparing, "build", None)
    assert prepare(configure(), output=output).fingerprint == first.fingerprint
    assert prepare(configure(dataset__cache_dir=str(output))).folder == output
    other = refused(
        configure(dataset__cache_dir=str(output), dataset__max_seq_length=16), "DAT002", "max_length"
    )
    assert other.place == str(output)


@pytest.mark.parametrize("is_there", [False, True])
def test_the_cache_folder_of_a_run_may_be_its_output(configure, tmp_path, is_there):
    output = tmp_path / "prepared"
    if is_there:
        output.mkdir()
    config = configure(dataset__cache_dir=str(output))
    first = prepare(config, output=output)
    assert prepare(config).folder == first.folder == output
    assert prepare(config, output=output).fingerprint == first.fingerprint


def test_an_output_that_holds_anything_is_left_alone(configure, tmp_path):
    (mine := tmp_path / "mine").mkdir()
    (mine / "thesis.tex").touch()
    with pytest.raises(ProjectError, match=r"not empty.*\[DAT009\]"):
        prepare(configure(), output=mine)
    assert (mine / "thesis.tex").exists()


def test_text_without_a_token_to_mask_is_refused(configure, tmp_path):
    """Training on it would change nothing but decay the weights."""
    path = write_jsonl(tmp_path / "a.jsonl", ["[MASK] [SEP] \u4f60"] * 60)
    for streaming in (False, True):
        options = {"dataset__streaming": streaming, "dataset__eval_samples": 5 if streaming else None}
        error = refused(configure(dataset__path=str(path), **options), "DAT004", "tokens can be masked")
        assert "unknown to the tokenizer" in error.message
    assert left_behind(configure()) == []


def test_the_fingerprint_is_of_the_content_alone(configure, corpus_file, tmp_path):
    copy = tmp_path / "elsewhere.jsonl"
    shutil.copyfile(corpus_file, copy)
    os.utime(copy, (1, 1))
    here = prepare(configure())
    there = prepare(configure(dataset__path=str(copy), dataset__cache_dir=str(tmp_path / "other")))
    assert there.fingerprint == here.fingerprint


def test_a_trained_tokenizer_lies_beside_the_data(configure):
    config = configure(tokenizer__path=None, tokenizer__vocab_size=100)
    first, second = prepare(config), prepare(config)
    assert first.tokenizer.vocab_size == 128
    assert first.tokenizer.digest == second.tokenizer.digest
    assert first.tokenizer.num_tokens <= 100
    assert second.tokenizer.tokenizer.model_max_length == 32


@pytest.mark.parametrize(
    ("name", "value"), [("tokenizer_digest", "0" * 64), ("max_length", 99), ("add_special_tokens", False)]
)
def test_data_of_another_tokenizer_or_length_is_refused(configure, name, value):
    data = prepare(configure())
    path = data.folder / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(manifest | {name: value}), encoding="utf-8")
    error = refused(configure(), "DAT002", name)
    assert str(value) in error.message
    assert str(manifest[name]) in error.message


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("train.tokens", b"", "the manifest states"),
        ("train.offsets", None, "is missing"),
        (MANIFEST, b"{", "not a manifest"),
        (MANIFEST, b"[]", "not a manifest"),
        (MANIFEST, b'{"format_version": 0}', "has format 0"),
        (MANIFEST, b'{"format_version": 3, "splits": {}}', "has no fingerprint, request, tokenizer_digest"),
        ("tokenizer/tokenizer.json", None, "has no tokenizer"),
    ],
)
def test_damaged_data_is_refused(configure, file, content, says):
    path = prepare(configure()).folder / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert "remove" in refused(configure(), "DAT001", says).hint


def test_a_folder_that_lost_its_manifest_is_prepared_anew(configure):
    data = prepare(configure())
    (data.folder / MANIFEST).unlink()
    (data.folder / "train.tokens").write_bytes(b"")
    again = prepare(configure())
    assert (again.folder, again.fingerprint) == (data.folder, data.fingerprint)
    assert segments(again.train)
    assert left_behind(configure()) == [data.folder.name]


def test_text_that_changes_while_it_is_prepared_is_refused(configure, tmp_path, monkeypatch):
    path = write_jsonl(tmp_path / "a.jsonl", sentences(100))
    config = configure(dataset__path=str(path))
    finish = split_writer.SplitWriter.finish

    def meanwhile(writer):
        write_jsonl(path, sentences(101))
        return finish(writer)

    with monkeypatch.context() as patch:
        patch.setattr(split_writer.SplitWriter, "finish", meanwhile)
        assert str(path) in refused(config, "DAT001", "changed during").place
    assert left_behind(config) == []
    assert prepare(config).report["train"]["documents"] == 101


def test_the_report_names_the_place_that_this_run_reads(configure, corpus_file, tmp_path):
    copy = tmp_path / corpus_file.name
    shutil.copy2(corpus_file, copy)
    here, there = prepare(configure()), prepare(configure(dataset__path=str(copy)))
    assert here.folder == there.folder
    assert [each.report["train"]["source"] for each in (here, there)] == [str(corpus_file), str(copy)]


@pytest.mark.parametrize(
    ("held_out", "copies"),
    [({"dataset__eval_samples": 4}, (4, 3)), ({"dataset__validation_split": 0.3}, (0, 0)), ({}, None)],
)
def test_copies_of_evaluation_text_are_counted(configure, tmp_path, held_out, copies):
    texts = ["go ba", "", "Go  ba", "goba", *sentences(60), "go ba", "", "go ba", "go ba", "go ba"]
    config = configure(dataset__path=str(write_jsonl(tmp_path / "a.jsonl", texts)), **held_out)
    report = prepare(config).report
    if copies is None:
        assert "copies_of_evaluation" not in report["train"]
    else:
        found = report["train"]["copies_of_evaluation"], report["eval"]["copies_in_training"]
        assert found == copies


def test_too_little_text(configure, tmp_path):
    def of(texts: list[str], **options: object) -> RunConfig:
        return configure(dataset__path=str(write_jsonl(tmp_path / "a.jsonl", texts)), **options)

    assert "128" in refused(of(["ba go"]), "DAT004", "4 tokens").message
    padded = of(["ba go"] * 3, datacollator__pack_sequences=False)
    assert "3 documents, but one microbatch holds 4" in refused(padded, "DAT004", "3 documents").message
    refused(of(["", " "]), "DAT004", "2 empty")
    refused(of(["ba"] * 9, dataset__min_length=20), "DAT004", "9 too short")
    refused(of(["ba " * 99], dataset__long_documents="drop"), "DAT004", "1 dropped")
    says = "9 go to evaluation (dataset.eval_samples), the text has 7"
    refused(of(["ba"] * 7, dataset__eval_samples=9), "DAT004", f"no training documents left: {says}")
    sliced = refused(of(["ba"] * 9, dataset__train_split="train[9:]"), "DAT004", "has no documents")
    assert "its slice" in (sliced.hint or "")
    blank = tmp_path / "blank.txt"
    blank.write_text(" \n\n\t\n")
    nothing = configure(dataset__path=str(blank), dataset__validation_split=0.5)
    assert "a source with text" in (refused(nothing, "DAT004", "has no documents").hint or "")
    shared = of(["ba"], dataset__validation_split=0.5)
    assert "validation_split 0.5" in refused(shared, "DAT004", "contains 0 of 1 document ").message
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("ba\n" * 9)
    unseparated = configure(dataset__path=str(tmp_path / "notes"), dataset__validation_split=0.5)
    hint = refused(unseparated, "DAT004", "contains 0 of 1 document ").hint or ""
    assert f"fold -s -w 2000 {tmp_path}/notes/*.txt | awk" in hint
    (tmp_path / "two.txt").write_text("ba\n\nbi\n\nbo\n\nbu\n")
    (tmp_path / "two.txt.txt").write_text("ba\n" * 9)  # its path begins with that of the other corpus
    corpora = tuple(MixtureCorpus(path=str(tmp_path / name)) for name in ("two.txt", "two.txt.txt"))
    mixed = configure(dataset__path=None, dataset__mixture=corpora, dataset__validation_split=0.5)
    hint = refused(mixed, "DAT004", "contains 0 of 1 document ").hint or ""
    assert f"fold -s -w 2000 {tmp_path}/two.txt.txt | awk" in hint
    refused(of(["ba " * 99], dataset__long_documents="error"), "DAT012", "101 tokens")
    assert len(left_behind(configure())) == 2, "two texts are whole, though too small to train on"


def test_a_best_checkpoint_needs_text_to_be_told_by(configure):
    best = {"trainer__metric_for_best_model": "eval/loss"}
    error = refused(configure(**best), "CKP010", "no evaluation text")
    assert error.place == "trainer.metric_for_best_model"
    assert prepare(configure(dataset__eval_samples=5, **best)).eval is not None


@pytest.mark.parametrize("written", [0, 5])
def test_a_full_disk_leaves_nothing(configure, monkeypatch, written):
    whole = split_writer.HashedFile.write
    calls = []

    def write(self, array):
        calls.append(array)
        if len(calls) > written:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(self, array)

    monkeypatch.setattr(split_writer.HashedFile, "write", write)
    refused(configure(dataset__eval_samples=5), "DAT009", "disk is full")
    assert left_behind(configure()) == []
    monkeypatch.undo()
    assert len(prepare(configure(dataset__eval_samples=5)).train) > 0


def test_a_cache_that_cannot_be_written(configure, tmp_path):
    (tmp_path / "file").touch()
    refused(configure(dataset__cache_dir=str(tmp_path / "file" / "cache")), "DAT009", "cannot be written")


SLOW_CHILD = """
import sys, time
from pathlib import Path
from neobert.data.store import split_writer
from neobert.data.store.prepare import prepare
from neobert.data.tokenize import encoding_pool
from tests.data.conftest import configurator

encoding_pool.BATCH_DOCUMENTS = 10
whole = split_writer.SplitWriter.append
split_writer.SplitWriter.append = lambda self, encoded: (whole(self, encoded), time.sleep(60))
prepare(configurator(*map(Path, sys.argv[1:]))())
"""


@pytest.mark.usefixtures("warm")
def test_a_process_killed_half_way_leaves_nothing_that_counts(configure):
    config = configure()
    arguments = [config.dataset.cache_dir, config.tokenizer.path, config.dataset.path]
    with subprocess.Popen([sys.executable, "-c", SLOW_CHILD, *map(str, arguments)], cwd=ROOT) as process:
        folder = cache_folder(config.dataset)
        deadline = time.monotonic() + 60
        while not list(folder.glob(".*.partial/train.tokens")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    partial = list(folder.glob(".*.partial"))
    assert partial, "the process was killed while it wrote"
    assert not list(folder.glob("*/" + MANIFEST))
    data = prepare(config)
    assert len(data.train) > 0
    assert left_behind(config) == [data.folder.name]


def test_only_one_prepares(configure, monkeypatch):
    """The lock belongs to the open file, so threads wait for each other as processes do."""
    builds = []

    def slow_build(*arguments):
        builds.append(arguments)
        time.sleep(0.3)
        build.build(*arguments)

    monkeypatch.setattr(preparing, "build", slow_build)
    with ThreadPoolExecutor(3) as pool:
        fingerprints = {
            job.result().fingerprint for job in [pool.submit(prepare, configure()) for _ in range(3)]
        }
    assert len(builds) == len(fingerprints) == 1


def test_waiting_for_a_process_that_makes_no_progress_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(build_lock, "POLL_S", 0.01)
    path = tmp_path / "x.lock"
    with hold_lock(path), pytest.raises(ProjectError) as caught, hold_lock(path, silence_limit_s=0.05):
        pass
    assert caught.value.code == "DAT009"
    assert f"process {os.getpid()} on" in caught.value.message
    with hold_lock(path):
        pass


def test_a_disk_too_full_for_the_owner_s_name(tmp_path, monkeypatch):
    def pwrite(handle, content, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build_lock.os, "pwrite", pwrite)
    with pytest.raises(ProjectError, match=r"the disk is full \[DAT009\]"), hold_lock(tmp_path / "x.lock"):
        pass


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def flock(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(build_lock.fcntl, "flock", flock)
    with pytest.raises(ProjectError, match="cannot lock files"), hold_lock(tmp_path / "x.lock"):
        pass


def test_where_prepared_data_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("NEOBERT_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    config = RunConfig()
    named = replace(config, dataset=replace(config.dataset, cache_dir=str(tmp_path / "c")))
    assert cache_folder(named.dataset) == tmp_path / "c"
    assert cache_folder(config.dataset) == tmp_path / "a"
    monkeypatch.delenv("NEOBERT_CACHE")
    assert cache_folder(config.dataset) == tmp_path / "b" / "neobert"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder(config.dataset) == tmp_path / ".cache" / "neobert"


def test_the_report_is_json_and_says_what_a_person_asks(shared):
    make, data = shared
    report = json.loads(json.dumps(data.report))
    assert set(report) == {"train", "eval", "microbatch", "epochs", "folder", "fingerprint", "tokenizer"}
    assert 0.9 < report["microbatch"]["fill"] <= 1
    assert report["microbatch"]["tokens"] == 4 * 32
    lengths, counts = zip(*report["train"]["histogram"], strict=True)
    assert sum(counts) == report["train"]["documents"] == 270
    assert list(lengths) == sorted(lengths)
    steps = make().trainer.max_steps
    assert report["epochs"] == pytest.approx(
        steps * 128 * report["microbatch"]["fill"] / data.train.num_tokens, rel=0.01
    )
    assert prepare(replace(make(), trainer=replace(make().trainer, max_epochs=0.5))).report["epochs"] == 0.5
