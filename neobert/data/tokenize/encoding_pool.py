"""Tokenization of all rows of a source, in this process or in several.

Each worker process first imports the program that started it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

from neobert.data.sources.rows import Row, count_characters
from neobert.data.tokenize.encoding import BATCH_DOCUMENTS, Encoded, Encoder, batched
from neobert.errors import ProjectError
from neobert.worker_pool import worker_pool

BATCH_CHARACTERS = 1 << 23
PARALLELISM_ENV = "TOKENIZERS_PARALLELISM"
GUARD = "move the program's code under `if __name__ == '__main__':`, or set dataset.num_proc to 1"


def encode_all(rows: Iterable[Row], encoder: Encoder, num_proc: int, label: str) -> Iterator[Encoded]:
    """Tokenize rows in batches, yielded in their order for any `num_proc`.

    Raises DAT012 for a document longer than `max_length` if `dataset.long_documents` is `error`.
    """
    return (encoded for _, encoded in encode_sources([(label, rows)], encoder, num_proc))


def encode_sources(
    sources: Sequence[tuple[str, Iterable[Row]]], encoder: Encoder, num_proc: int
) -> Iterator[tuple[int, Encoded]]:
    """Tokenize the rows of several labelled sources; yields (source index, batch) in their order.

    No batch has rows of two sources. Raises DAT012 as `encode_all` does.
    """
    numbers: deque[int] = deque()

    def batches() -> Iterator[tuple[Row, ...]]:
        for number, (_, rows) in enumerate(sources):
            for batch in batched(rows, BATCH_DOCUMENTS, BATCH_CHARACTERS, count_characters):
                numbers.append(number)
                yield batch

    source, documents = 0, 0
    for encoded in _encode_batches(batches(), encoder, num_proc):
        if (number := numbers.popleft()) != source:
            source, documents = number, 0
        if encoded.too_long is not None:
            row, length = encoded.too_long
            raise ProjectError(
                "DAT012",
                f"document {documents + row + 1:,} has {length:,} tokens, special tokens included "
                f"(limit {encoder.max_length:,})",
                "set dataset.long_documents to split, truncate or drop, or raise dataset.max_seq_length",
                sources[source][0],
            )
        documents += encoded.counts.documents
        yield source, encoded


def _encode_batches(batches: Iterator[tuple[Row, ...]], encoder: Encoder, num_proc: int) -> Iterator[Encoded]:
    if num_proc > 1:
        return encode_in_processes(batches, encoder, num_proc)
    # If unset, the library uses one core after a fork, and warns. A user's value is kept.
    os.environ.setdefault(PARALLELISM_ENV, "true")
    return map(encoder.encode, batches)


def encode_in_processes(
    batches: Iterator[tuple[Row, ...]], encoder: Encoder, num_proc: int
) -> Iterator[Encoded]:
    """Encode batches in order. Raises DAT009 if the processes cannot start, or one of them is killed."""
    has_started = False
    with worker_pool(num_proc, _start_process, encoder) as pool:
        waiting: deque[Future[Encoded]] = deque()
        try:
            for batch in batches:
                waiting.append(pool.submit(_encode_in_process, batch))
                if len(waiting) > 2 * num_proc:
                    yield waiting.popleft().result()
                    has_started = True
            while waiting:
                yield waiting.popleft().result()
                has_started = True
        except BrokenProcessPool as error:
            raise _broken_pool_error(has_started=has_started) from error


def check_not_a_child() -> None:
    """Raise DAT009 in a tokenizer worker that is still importing the main program.

    Without an `if __name__ == "__main__"` guard, each worker would prepare the data again, which is a
    deadlock: the worker waits for the lock of its parent, and the parent for the worker.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        message = "a tokenizer worker imported this program, which started to prepare data again"
        raise ProjectError("DAT009", message, GUARD, "dataset.num_proc")


def _broken_pool_error(*, has_started: bool) -> ProjectError:
    if has_started:
        message = "a tokenizer worker was killed, probably because memory ran out"
        return ProjectError("DAT009", message, "lower dataset.num_proc", "dataset.num_proc")
    message = "the tokenizer workers ended before their first batch; their output is above"
    return ProjectError("DAT009", message, GUARD, "dataset.num_proc")


_worker_encoder: Encoder | None = None


def _start_process(encoder: Encoder) -> None:
    global _worker_encoder
    os.environ[PARALLELISM_ENV] = "false"  # there is a process per core already
    _worker_encoder = encoder


def _encode_in_process(rows: tuple[Row, ...]) -> Encoded:
    assert _worker_encoder is not None
    return _worker_encoder.encode(rows)
