import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import datasets
import pytest

from neobert.config.schema import DatasetConfig
from neobert.data.batches.streams import TrainStream
from neobert.data.sources import readers, retries
from neobert.data.sources.hub import StreamSource, hub_splits
from neobert.data.sources.readers import IndexedSource
from neobert.data.sources.retries import RetryingReader, is_transient
from neobert.data.store.prepare import prepare
from neobert.errors import ProjectError
from tests.data.conftest import format_of, rows_of, sentences, write_jsonl
from tests.refusals import refusal_of

TEXTS = [f"document {number}" for number in range(30)]


@dataclass
class Flaky:
    """A source whose documents fail to be read so many times; every opening is noted."""

    failures: dict[int, list[Exception]]
    opened: list[int] = field(default_factory=list)
    label: str = "flaky"

    def open(self, state: dict[str, Any] | None = None) -> Any:
        inner = IndexedSource(
            "x", lambda a, b: rows_of(TEXTS[a:b]), lambda: len(TEXTS), list, format_of()
        ).open(state)
        self.opened.append(inner.state()["document"])
        outer = self

        class Reader:
            def __iter__(self) -> Iterator[str]:
                return self

            def __next__(self) -> str:
                pending = outer.failures.get(inner.state()["document"])
                if pending:
                    raise pending.pop()
                return next(inner)

            def state(self) -> dict[str, Any]:
                return inner.state()

        return Reader()


def patient(source: Any, retries: int = 4) -> tuple[RetryingReader, list[float]]:
    pauses: list[float] = []
    return RetryingReader(source, retries, 5.0, 60.0, sleep=pauses.append), pauses


def test_a_failed_read_is_repeated_from_the_start_of_its_chunk():
    source = Flaky({13: [ConnectionError("gone"), TimeoutError("slow")]})
    reader, pauses = patient(source)
    first, state = reader.read(None, 10)
    second, state = reader.read(state, 10)
    third, _ = reader.read(state, 99)
    assert first + second + third == rows_of(TEXTS)
    assert source.opened == [0, 10, 10], "opened again after a failure, and only then"
    assert pauses == [5.0, 10.0]


def test_long_documents_are_read_a_few_at_a_time(monkeypatch):
    """A text in one line is a thousand documents of a million characters."""
    monkeypatch.setattr(retries, "CHUNK_CHARACTERS", 25)
    documents = ["0123456789"] * 7
    source = IndexedSource(
        "x", lambda start, stop: rows_of(documents[start:stop]), lambda: 7, list, format_of()
    )
    reader, chunks = RetryingReader.from_config(source, DatasetConfig()), []
    read = reader.read
    reader.read = lambda *arguments: chunks.append(read(*arguments)) or chunks[-1]
    assert list(reader) == rows_of(documents)
    assert [len(texts) for texts, _ in chunks] == [3, 3, 1, 0]


def test_long_rows_are_fetched_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(readers, "_FIRST_FETCH", 2)
    monkeypatch.setattr(readers, "_FETCH_CHARACTERS", 100)
    documents, fetched = [*["0123456789"] * 20, *["x" * 1000] * 3, *["y"] * 4], []

    def fetch(start: int, stop: int) -> list[str]:
        fetched.append(stop - start)
        return rows_of(documents[start:stop])

    assert list(IndexedSource("x", fetch, lambda: len(documents), list, format_of()).open()) == rows_of(
        documents
    )
    assert fetched == [2, 10, 10, 1, 1, 3]


def test_a_chunk_from_elsewhere_opens_the_source_there():
    source = Flaky({})
    reader, _ = patient(source)
    _, state = reader.read(None, 10)
    assert reader.read(state, 5)[0] == rows_of(TEXTS[10:15])
    assert reader.read(state, 5)[0] == rows_of(TEXTS[10:15])
    assert reader.read(None, 3)[0] == rows_of(TEXTS[:3])
    assert list(reader) == rows_of(TEXTS)
    assert source.opened == [0, 10, 0, 0]


def test_pauses_double_up_to_the_longest_and_patience_ends():
    reader, pauses = patient(Flaky({3: [ConnectionError("gone")] * 9}), retries=6)
    with pytest.raises(ProjectError) as caught:
        reader.read(None, 10)
    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert (caught.value.code, caught.value.exit_code, caught.value.place) == ("DAT010", 4, "flaky")
    assert "failed 7 times, last with ConnectionError: gone" in caught.value.message


@pytest.mark.parametrize(
    "error", [ValueError("broken row"), FileNotFoundError("no such shard"), KeyError("x")]
)
def test_what_no_patience_mends_is_said_at_once(error):
    reader, pauses = patient(Flaky({3: [error]}))
    refusal_of(reader.read, "DAT001", "cannot be read", None, 10)
    assert pauses == []


def test_an_error_of_this_project_passes_through():
    mine = ProjectError("DAT011", "a column", "", "x")
    reader, _ = patient(Flaky({3: [mine]}))
    with pytest.raises(ProjectError) as caught:
        reader.read(None, 10)
    assert caught.value is mine


def test_a_library_of_the_network_is_transient():
    read_timeout = type("ReadTimeout", (Exception,), {"__module__": "httpx._exceptions"})
    assert is_transient(read_timeout("slow"))
    assert is_transient(OSError(5, "Input/output error"))
    assert not is_transient(RuntimeError("a bug"))


def test_the_keys_of_the_config_are_the_patience():
    config = DatasetConfig(
        path="x",
        streaming_read_retries=2,
        streaming_read_retry_backoff_seconds=1.0,
        streaming_read_retry_max_backoff_seconds=1.5,
    )
    reader = RetryingReader.from_config(Flaky({}), config)
    assert (reader.retries, reader.first_pause_s, reader.longest_pause_s) == (2, 1.0, 1.5)


def test_training_goes_on_after_a_failed_read(configure, monkeypatch):
    """The samples are those of a run whose reads never failed."""
    config = configure(
        dataset__streaming=True,
        dataset__eval_samples=5,
        dataset__shuffle_buffer_size=8,
        dataset__streaming_read_retry_backoff_seconds=0.001,
        trainer__per_device_train_batch_size=1,
    )

    def samples(failures: dict[int, list[Exception]]) -> list[list[int]]:
        data = prepare(config)
        data.train.reader.source = Flaky(failures)
        with TrainStream(data, config, data.tokenizer) as stream:
            return [next(stream).input_ids.tolist() for _ in range(25)]

    assert samples({3: [ConnectionError()], 17: [TimeoutError(), OSError(5, "x")]}) == samples({})


def test_readers_of_one_stream_do_not_move_each_other(tmp_path):
    for number in range(3):
        write_jsonl(tmp_path / f"train-{number}.jsonl", TEXTS[number * 10 : number * 10 + 10])
    source = hub_splits(DatasetConfig(name=str(tmp_path), streaming=True), format_of())["train"]()
    assert isinstance(source, StreamSource)
    assert source.count() is None
    first = source.open()
    taken = [next(first) for _ in range(7)]
    state = json.loads(json.dumps(first.state()))
    assert list(source.open()) == rows_of(TEXTS)
    assert list(source.open(state)) == rows_of(TEXTS[7:])
    assert list(source.open(state)) == rows_of(TEXTS[7:]), "a state can be used twice"
    assert taken == rows_of(TEXTS[:7])


def test_a_stream_of_a_generator_names_its_column_from_the_first_row(monkeypatch):
    def rows() -> Iterator[dict[str, str]]:
        for text in TEXTS:
            yield {"sentence": text}

    stream = datasets.IterableDatasetDict(train=datasets.IterableDataset.from_generator(rows))
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, revision, streaming: stream)
    source = hub_splits(DatasetConfig(name="some/name", streaming=True), format_of())["train"]()
    assert list(source.open()) == rows_of(TEXTS)
    with pytest.raises(ProjectError, match="DAT011"):
        hub_splits(DatasetConfig(name="some/name", streaming=True), format_of("text"))["train"]()


@pytest.mark.parametrize(
    ("options", "has_split", "is_accepted"),
    [
        ({}, False, False),
        ({}, True, False),
        ({"dataset__validation_split": 0.1}, False, False),
        ({"dataset__validation_split": 0.1, "trainer__eval_max_batches": 3}, False, False),
        ({"trainer__eval_max_batches": 3}, False, False),
        ({"trainer__eval_max_batches": 3}, True, True),
        ({"dataset__validation_split": 0.1, "trainer__eval_max_batches": 3}, True, True),
        ({"dataset__eval_samples": 9}, True, True),
        ({"dataset__eval_samples": 9}, False, True),
        ({"dataset__eval_samples": 9, "dataset__validation_split": 0.1}, False, True),
    ],
)
def test_a_stream_must_know_what_it_evaluates(configure, tmp_path, options, has_split, is_accepted):
    write_jsonl(tmp_path / "data" / "train.jsonl", sentences(60))
    if has_split:
        write_jsonl(tmp_path / "data" / "valid.jsonl", sentences(500, seed=5))
    config = configure(dataset__streaming=True, dataset__path=str(tmp_path / "data"), **options)
    if not is_accepted:
        assert refusal_of(prepare, "DAT001", "needs a limited number", config).place == "dataset.streaming"
        return
    data = prepare(config)
    assert data.eval.num_tokens > 0
    assert data.report["eval"]["documents"] in (9, 500)


def test_how_much_a_stream_evaluates_makes_no_other_data_of_it(configure, tmp_path, monkeypatch):
    """A run whose evaluation was too large for the memory goes on with a smaller one."""
    monkeypatch.setattr("neobert.data.tokenize.encoding_pool.BATCH_DOCUMENTS", 10)
    write_jsonl(tmp_path / "data" / "train.jsonl", sentences(60))
    write_jsonl(tmp_path / "data" / "valid.jsonl", sentences(500, seed=5))
    place = {"dataset__streaming": True, "dataset__path": str(tmp_path / "data")}
    much = prepare(configure(**place, trainer__eval_max_batches=30, trainer__per_device_eval_batch_size=4))
    less = prepare(configure(**place, trainer__eval_max_batches=3, trainer__per_device_eval_batch_size=2))
    assert less.eval.num_tokens < much.eval.num_tokens
    assert less.fingerprint == much.fingerprint
    (tmp_path / "data" / "valid.jsonl").write_text('{"text": "ba go"}\n', encoding="utf-8")
    assert prepare(configure(**place, trainer__eval_max_batches=3)).fingerprint != less.fingerprint


def test_a_stream_is_prepared_without_reading_it(configure, corpus_file):
    config = configure(dataset__streaming=True, dataset__eval_samples=5)
    data = prepare(config)
    assert not list(data.folder.glob("train.*"))
    assert (data.tokenizer_dir / "tokenizer.json").is_file()
    assert data.fingerprint != prepare(configure(dataset__eval_samples=5)).fingerprint
    assert data.report["train"]["source"].endswith("its head")
    assert "fill" not in data.report["microbatch"]


def test_a_tokenizer_is_trained_from_a_stream(configure):
    stream, prepared = (
        prepare(
            configure(
                dataset__streaming=streaming,
                dataset__eval_samples=5,
                tokenizer__path=None,
                tokenizer__vocab_size=100,
            )
        )
        for streaming in (True, False)
    )
    assert stream.tokenizer.digest == prepared.tokenizer.digest


def test_a_stream_without_text(configure, tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [*sentences(5), *[""] * 30])
    config = configure(dataset__streaming=True, dataset__eval_samples=5, dataset__path=str(path))
    with pytest.raises(ProjectError, match=r"no text to train on.*DAT004"):
        prepare(config)


def test_windows_of_empty_documents_are_passed_over(configure, tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [*sentences(15), *[""] * 30, *sentences(15, seed=2)])
    config = configure(
        dataset__streaming=True,
        dataset__eval_samples=5,
        dataset__path=str(path),
        dataset__shuffle_buffer_size=10,
        trainer__per_device_train_batch_size=1,
    )
    data = prepare(config)
    with TrainStream(data, config, data.tokenizer) as stream:
        batches = [next(stream) for _ in range(60)]
    windows = {(batch.cursor.epoch, batch.cursor.window) for batch in batches}
    assert {(0, 0), (0, 1), (0, 2), (1, 0)} <= windows
    assert (0, 3) not in windows


def test_a_document_that_may_not_be_long_stops_a_stream(configure, tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [*["ba go"] * 3000, "ba " * 90])
    config = configure(
        dataset__streaming=True,
        dataset__eval_samples=5,
        dataset__path=str(path),
        dataset__long_documents="error",
        dataset__shuffle_buffer_size=500,
    )
    data = prepare(config)
    with TrainStream(data, config, data.tokenizer) as stream, pytest.raises(ProjectError, match="92 tokens"):
        list(islice(stream, 500))
