"""The threads behind the streams: errors come back, none is left behind."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from neobert.data.batches import windows
from neobert.data.batches.streams import EvalStream, Microbatch, TrainStream
from neobert.errors import ProjectError
from tests.data.conftest import read


def test_an_error_in_a_thread_reaches_the_reader_and_stays(texts, monkeypatch):
    config, data = texts["prepared"]
    config = replace(config, dataset=replace(config.dataset, num_workers=2))
    stream = TrainStream(data, config, data.tokenizer)
    monkeypatch.setitem(windows.PACKERS, windows.NEWEST_PACKER, lambda *arguments: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            next(stream)
    stream.close()


@pytest.mark.parametrize("ends", ["close", "exit", "error", "forgotten", "evaluation left half-way"])
def test_threads_end_with_their_stream(texts, ends):
    config, data = texts["stream of files"]
    config = replace(config, dataset=replace(config.dataset, num_workers=2))
    before = set(threading.enumerate())
    if ends.startswith("evaluation"):
        half = iter(EvalStream(data, config, data.tokenizer))
        next(half)
        assert set(threading.enumerate()) > before
        half.close()
    else:
        stream = TrainStream(data, config, data.tokenizer)
        next(stream)
        mine = set(threading.enumerate()) - before
        assert len(mine) == 3
        if ends == "exit":
            with stream:
                pass
        elif ends == "error":
            stream._tasks = iter([lambda: 1 / 0])
            with pytest.raises(ZeroDivisionError):
                for _ in stream:
                    pass
        elif ends == "forgotten":
            del stream
            import gc

            gc.collect()
            for thread in mine:
                thread.join(60)
        else:
            stream.close()
            stream.close()
    assert set(threading.enumerate()) - before == set()


def test_a_thread_that_hangs_ends_in_an_error(texts, monkeypatch):
    from neobert.data.batches import streams

    monkeypatch.setattr(streams, "SILENCE_LIMIT_S", 0.05)
    monkeypatch.setattr(streams, "_POLL_S", 0.01)
    monkeypatch.setattr("neobert.data.batches.prefetch.JOIN_S", 0.01)
    config, data = texts["prepared"]
    config = replace(config, dataset=replace(config.dataset, num_workers=1))
    release = threading.Event()
    monkeypatch.setattr(windows.PreparedWindows, "load", lambda self, cursor: release.wait(30))
    stream = TrainStream(data, config, data.tokenizer)
    with pytest.raises(ProjectError) as caught:
        next(stream)
    release.set()
    assert (caught.value.code, caught.value.exit_code) == ("DAT010", 4)


def test_pinning_happens_on_the_device_of_the_rank(texts, monkeypatch):
    """A thread starts on device 0; pinning there would open a context on another rank's device."""
    current = threading.local()

    @contextmanager
    def device(number: int) -> Iterator[None]:
        current.number = number
        yield
        current.number = 0

    pinned = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(Microbatch, "pin_memory", lambda batch: pinned.append(current.number) or batch)
    read(texts["prepared"], 3, num_workers=2)
    assert set(pinned) == {3}


def test_a_pause_on_purpose_is_a_sign_of_progress_and_silence_is_none(texts, monkeypatch):
    """Who watches from outside would take a patient reader for one that hangs."""
    from neobert.data.batches import streams

    monkeypatch.setattr(streams, "_POLL_S", 0.01)
    config, data = texts["stream of files"]
    config = replace(config, dataset=replace(config.dataset, num_workers=1))
    load, signs, counts = windows.StreamedWindows.load, [], {}

    def count(kind, last_progress_s, has_ended):
        data.train.reader.last_progress_s, heard, begun_s = last_progress_s, len(signs), time.monotonic()
        while not has_ended(len(signs) - heard, time.monotonic() - begun_s):
            time.sleep(0.01)
        counts.setdefault(kind, len(signs) - heard)  # later windows are loaded while nobody waits

    def pausing(source, cursor):
        count("silence", time.monotonic() - 60, lambda _, waited_s: waited_s > 0.1)
        count("pause", time.monotonic() + 60, lambda number, waited_s: number >= 3 or "pause" in counts)
        return load(source, cursor)

    monkeypatch.setattr(windows.StreamedWindows, "load", pausing)
    with TrainStream(data, config, data.tokenizer, on_progress=lambda: signs.append(1)) as stream:
        next(stream)
    assert counts["pause"] >= 3
    assert counts["silence"] == 0
