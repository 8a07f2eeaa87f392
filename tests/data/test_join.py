"""Parts of a text joined: the text of one preparation, for the data of every kind of task."""

import json
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neobert.config.schema import DatasetConfig, MixtureCorpus, RunConfig
from neobert.data.batches.streams import EvalStream, TrainStream
from neobert.data.sources.corpus import open_corpus
from neobert.data.sources.preview import preview_local_text
from neobert.data.sources.rows import text_digest, text_rows
from neobert.data.store import opened_text
from neobert.data.store.contents import describe
from neobert.data.store.join import join
from neobert.data.store.overlap import DIGEST, count_copies
from neobert.data.store.part import prepare_part
from neobert.data.store.prepare import prepare
from neobert.data.store.prepared_data import PreparedData
from neobert.data.store.segment_store import SegmentStore
from neobert.data.store.token_store import MANIFEST
from neobert.errors import ProjectError
from neobert.runfiles.part_faults import missing_parts, part_disagreements, read_prepared_parts
from neobert.runfiles.prepared_parts import PartNumber
from tests.data.conftest import Configure, same, sentences, write_jsonl
from tests.refusals import refusal_of

PARTS = 3


def joined(config: RunConfig, folder: Path, num_parts: int = PARTS) -> RunConfig:
    """Prepare and join the parts of a text; return the config that reads them."""
    for number in range(num_parts, 0, -1):
        prepare_part(config, folder, PartNumber(number, num_parts))
    join(folder)
    return replace(config, dataset=replace(config.dataset, cache_dir=str(folder)))


def conversations(count: int, seed: int) -> list[dict[str, Any]]:
    requested, answered = sentences(count, seed, 9), sentences(count, seed + 100, 9)
    roles = ("user", "assistant")
    return [
        {"messages": [{"role": role, "content": text} for role, text in zip(roles, pair, strict=True)]}
        for pair in zip(requested, answered, strict=True)
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def text_of(task: str, folder: Path) -> None:
    """Write rows of a task into five files."""
    for number in range(5):
        texts, others = sentences(40, number), sentences(40, 50 + number)
        rows: dict[str, list[dict[str, Any]]] = {
            "pretrain": [{"text": text} for text in [*texts, "ba " * 80, "", *sentences(3, 99)]],
            "contrastive": [{"query": a, "positive": b} for a, b in zip(texts, others, strict=True)],
            "classification": [{"text": text, "label": len(text) % 2} for text in texts],
            "token_classification": [
                {"tokens": text.split(), "tags": [len(word) % 2 for word in text.split()]} for text in texts
            ],
            "sft": conversations(40, number),
        }
        write_rows(folder / f"{number}.jsonl", rows[task])


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("pretrain", {}),
    "padded rows": ("pretrain", {"datacollator__pack_sequences": False}),
    "share by hash": ("pretrain", {"dataset__eval_samples": None, "dataset__validation_split": 0.2}),
    "slice": ("pretrain", {"dataset__train_split": "train[50:170]"}),
    "pairs": (
        "contrastive",
        {"dataset__long_documents": "truncate", "trainer__per_device_eval_batch_size": 4},
    ),
    "labels": ("classification", {"dataset__long_documents": "truncate"}),
    "labels of words": ("token_classification", {}),
    "conversations": ("sft", {}),
}


@pytest.fixture
def configure_task(configure: Configure, tmp_path):
    def make(kind: str) -> RunConfig:
        task, changes = KINDS[kind]
        text_of(task, tmp_path / "text")
        config = configure(dataset__path=str(tmp_path / "text"), **{"dataset__eval_samples": 30} | changes)
        config = replace(config, task=task)
        if task == "token_classification":
            labels = replace(config.token_classification, label_names=("O", "LOC"))
            config = replace(config, token_classification=labels)
        if task == "sft":
            tokenizer = replace(config.tokenizer, chat_template="turns")
            config = replace(config, tokenizer=tokenizer, model=replace(config.model, type="llama"))
        return config

    return make


def contents(store: SegmentStore) -> dict[str, Any]:
    every = store.gather(np.arange(len(store)))
    columns = {name: each.tolist() for name, each in every.columns.items()}
    return columns | {name: getattr(every, name).tolist() for name in ("ids", "lengths", "samples", "groups")}


def assert_same_text(one: PreparedData, other: PreparedData) -> None:
    for left, right in ((one.train, other.train), (one.eval, other.eval)):
        assert isinstance(left, SegmentStore)
        assert isinstance(right, SegmentStore)
        assert contents(left) == contents(right)
        assert left.statistics == right.statistics
    assert one.tokenizer.digest == other.tokenizer.digest
    kept = [name for name in one.report if name not in ("folder", "fingerprint")]
    assert {name: one.report[name] for name in kept} == {name: other.report[name] for name in kept}


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_the_text_of_one_preparation(configure_task, tmp_path, kind):
    config = configure_task(kind)
    whole = prepare(config)
    in_parts = joined(config, tmp_path / "parts")
    parts = prepare(in_parts)
    assert_same_text(whole, parts)
    assert parts.folder == tmp_path / "parts"
    with (
        TrainStream(whole, config, whole.tokenizer) as one,
        TrainStream(parts, in_parts, parts.tokenizer) as other,
    ):
        assert all(same(*pair) for pair in islice(zip(one, other, strict=True), 60))
    evaluations = (EvalStream(whole, config, whole.tokenizer), EvalStream(parts, in_parts, parts.tokenizer))
    assert all(same(*pair) for pair in zip(*evaluations, strict=True))


def test_a_mixture_in_parts_is_the_mixture(configure, tmp_path):
    text_of("pretrain", tmp_path / "text")
    write_jsonl(tmp_path / "other.jsonl", sentences(50, 7))
    corpora = (
        MixtureCorpus(path=str(tmp_path / "text"), weight=2.0),
        MixtureCorpus(path=str(tmp_path / "other.jsonl")),
    )
    config = configure(dataset__path=None, dataset__mixture=corpora, dataset__eval_samples=9)
    whole, in_parts = prepare(config), joined(config, tmp_path / "parts", 4)
    assert_same_text(whole, prepare(in_parts))


def test_the_number_of_parts_changes_no_fingerprint(configure_task, tmp_path):
    config = configure_task("text")
    fingerprints = {
        prepare(joined(config, tmp_path / f"parts-{number}", number)).fingerprint for number in (1, 2, 5)
    }
    assert len(fingerprints) == 1


def test_the_facts_of_joined_parts(configure_task, tmp_path):
    config = configure_task("text")
    whole = describe(config, prepare(config))
    in_parts = joined(config, tmp_path / "parts")
    found = describe(in_parts, prepare(in_parts))
    differing = {name for name in whole if whole[name] != found[name]}
    assert differing == {"folder", "fingerprint"}
    with (tmp_path / "parts" / "part-2-of-3" / "train.tokens").open("r+b") as file:
        file.write(b"\xff\x00")
    assert describe(in_parts, prepare(in_parts))["altered_files"] == ["part-2-of-3/train.tokens"]


def refused(folder: Path, code: str, says: str) -> ProjectError:
    return refusal_of(join, code, says, folder)


def test_what_is_not_joined_is_refused(configure_task, tmp_path):
    config, parts = configure_task("text"), tmp_path / "all parts"
    refused(parts, "DAT038", "no prepared part")
    for number in (1, 3):
        prepare_part(config, parts, PartNumber(number, PARTS))
    error = refused(parts, "DAT038", "1 part is missing: part-2-of-3")
    assert f"--part 2/3 --output '{parts}'" in error.hint
    reading = replace(config, dataset=replace(config.dataset, cache_dir=str(parts)))
    caught = refusal_of(prepare, "DAT038", "2 parts of a text, which are not joined", reading)
    assert f"data join '{parts}'" in caught.hint

    other = replace(config, dataset=replace(config.dataset, max_seq_length=24))
    prepare_part(other, parts, PartNumber(2, PARTS))
    refused(parts, "DAT038", "part-2-of-3 differs from part-1-of-3 in max_length")
    shutil.rmtree(parts / "part-2-of-3")
    shutil.copytree(parts / "part-1-of-3", parts / "part-2-of-3")
    refused(parts, "DAT038", "part-2-of-3 is part 1 of 3 under another name")
    (parts / "part-2-of-3" / MANIFEST).write_text("{}")
    refused(parts, "DAT038", "part-2-of-3/manifest.json is not the manifest of a part")
    shutil.rmtree(parts / "part-2-of-3")
    prepare_part(config, parts, PartNumber(2, PARTS))
    tokens = parts / "part-2-of-3" / "train.tokens"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    refused(parts, "DAT001", "bytes, but the manifest states")


def test_text_or_settings_that_changed_since_are_refused(configure_task, tmp_path):
    config = joined(configure_task("text"), tmp_path / "parts")
    with pytest.raises(ProjectError, match="different values of min_length"):
        prepare(replace(config, dataset=replace(config.dataset, min_length=3)))
    with (tmp_path / "text" / "0.jsonl").open("a") as file:
        file.write('\n{"text": "ba go"}')
    refusal_of(prepare, "DAT002", "different values of source", config)


def test_more_files_than_a_process_may_open(configure_task, tmp_path, monkeypatch):
    config = joined(configure_task("text"), tmp_path / "parts")
    limits = []
    monkeypatch.setattr(opened_text.resource, "getrlimit", lambda _: (10, 1000))
    monkeypatch.setattr(opened_text.resource, "setrlimit", lambda _, pair: limits.append(pair))
    assert prepare(config).train.num_tokens
    assert limits == [(512 + 12, 1000)] * 2
    monkeypatch.setattr(opened_text.resource, "getrlimit", lambda _: (10, 500))
    refusal_of(prepare, "DAT009", "12 files, but this process may open only 500", config)


def manifest(number: int, of: int = 2, **changes: Any) -> dict[str, Any]:
    split = {
        "dtype": "uint16",
        "columns": [],
        "num_blocks": 2,
        "blocks": [{"index": number - 1, "key": f"{number}.jsonl"}],
    }
    return {
        "part": {"number": number, "of": of},
        "request": {"max_length": 32},
        "tokenizer_digest": "a",
        "splits": {"train": split},
    } | changes


SOUND = {PartNumber(1, 2): manifest(1), PartNumber(2, 2): manifest(2)}
SPLIT = SOUND[PartNumber(2, 2)]["splits"]["train"]
FAULTS = {
    "part-2-of-2 differs from part-1-of-2 in max_length": {"request": {"max_length": 64}},
    "part-2-of-2 differs from part-1-of-2 in tokenizer_digest": {"tokenizer_digest": "b"},
    "part-2-of-2 differs from part-1-of-2 in dtype of train": {
        "splits": {"train": SPLIT | {"dtype": "uint32"}}
    },
    "part-2-of-2 differs from part-1-of-2 in num_blocks of train": {
        "splits": {"train": SPLIT | {"num_blocks": 3}}
    },
    "part-2-of-2 is part 1 of 2 under another name": {"part": {"number": 1, "of": 2}},
    "no part has block 1 of split train (1 of 2 missing)": {"splits": {"train": SPLIT | {"blocks": []}}},
    "part-2-of-2 repeats 1.jsonl of part-1-of-2 (train)": {
        "splits": {
            "train": SPLIT | {"blocks": [*SPLIT["blocks"], {"index": 0, "key": "1.jsonl"}]},
        }
    },
}


def test_sound_parts_agree():
    assert [*part_disagreements(SOUND, is_whole=True)] == []
    assert missing_parts(SOUND, SOUND) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_one_finding(fault):
    parts = SOUND | {PartNumber(2, 2): manifest(2) | FAULTS[fault]}
    assert [*part_disagreements(parts, is_whole=True)] == [fault]


def test_parts_of_two_divisions():
    parts = SOUND | {PartNumber(2, 3): manifest(2, 3)}
    assert "part-2-of-3 belongs to 3 parts, but part-1-of-2 to 2" in [
        *part_disagreements(parts, is_whole=True)
    ]
    assert [part.folder for part in missing_parts(parts, parts)] == ["part-1-of-3", "part-3-of-3"]


def test_a_part_that_is_being_written_is_missing(tmp_path):
    (tmp_path / ".part-1-of-1.partial").mkdir()
    found = read_prepared_parts(tmp_path)
    assert found is not None
    assert (found.missing, found.faults) == (("part-1-of-1",), ())


def test_copies_are_counted_as_in_one_preparation():
    def digests(*texts: str) -> np.ndarray:
        return np.frombuffer(b"".join(map(text_digest, texts)), DIGEST)

    training = [digests("a", "b", "a"), digests(), digests("d")]
    assert count_copies(training, digests("a", "a", "c", "d")) == (3, 3)
    assert count_copies(training, digests()) == (0, 0)


def test_joined_parts_are_a_text_without_their_source(configure_task, tmp_path):
    config = configure_task("text")
    parts = prepare(joined(config, tmp_path / "parts"))
    shutil.rmtree(tmp_path / "text")
    tokenizer = replace(config.tokenizer, path=None)
    for changed in (config, replace(config, tokenizer=tokenizer)):
        dataset = replace(config.dataset, path=str(tmp_path / "parts"), eval_samples=None)
        found = prepare(replace(changed, dataset=dataset))
        assert contents(found.train) == contents(parts.train)
        assert contents(found.eval) == contents(parts.eval)
        assert found.fingerprint == parts.fingerprint
        assert found.report["train"]["source"] == f"{tmp_path / 'parts'} (train, prepared)"
    for key, value in (("max_seq_length", 24), ("min_length", 2)):
        other = replace(config, dataset=replace(dataset, **{key: value}))
        refusal_of(prepare, "DAT002", "different values of m", other)
    for key, value in (("streaming", True), ("train_split", "train[:10]")):
        other = replace(config, dataset=replace(dataset, **{key: value}))
        refusal_of(prepare, "DAT001", "is prepared text, which is read as a whole", other)
    with pytest.raises(ProjectError, match="is already prepared"):
        prepare_part(replace(config, dataset=dataset), tmp_path / "again", PartNumber(1, 2))


def test_joined_parts_in_a_folder_of_text_are_not_read(configure_task, tmp_path):
    config = configure_task("text")
    joined(config, tmp_path / "text" / "parts")
    corpus = open_corpus(config.dataset)
    assert corpus.train.source.names == tuple(f"{number}.jsonl" for number in range(5))
    preview = preview_local_text(
        DatasetConfig(path=str(tmp_path / "text" / "parts")), text_rows(config.dataset)
    )
    assert (preview.exists, preview.formats, preview.error) == (True, {"prepared part": 3}, None)


def test_texts_that_pairs_share_are_counted_as_in_one_preparation(configure, tmp_path):
    text_of("contrastive", tmp_path / "text")
    text_of("contrastive", tmp_path / "other")  # the same pairs
    (tmp_path / "other" / "0.jsonl").unlink()
    corpora = tuple(MixtureCorpus(path=str(tmp_path / name)) for name in ("text", "other"))
    changes = {"dataset__long_documents": "truncate", "trainer__per_device_eval_batch_size": 4}
    config = configure(dataset__path=None, dataset__mixture=corpora, dataset__eval_samples=30, **changes)
    config = replace(config, task="contrastive")
    whole, parts = prepare(config), prepare(joined(config, tmp_path / "parts", 4))
    assert_same_text(whole, parts)
    assert parts.report["train"]["texts_of_other_sources"] > 200
    assert parts.report["eval"]["texts_in_training"] == 30
