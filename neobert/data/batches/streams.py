"""Streams of microbatches, in the same global order for every world size and every number of threads."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from neobert.config.schema import DatasetConfig, RunConfig
from neobert.data.batches.document_stream import DocumentStream
from neobert.data.batches.masking import EVALUATION_EPOCH
from neobert.data.batches.microbatch import Assembler, Microbatch
from neobert.data.batches.mixture import MixedText, MixedWindows
from neobert.data.batches.prefetch import WorkerThreads
from neobert.data.batches.shape import BatchShape, batch_shape
from neobert.data.batches.stepped import SteppedText, SteppedWindows
from neobert.data.batches.windows import (
    Cursor,
    FixedWindows,
    PreparedWindows,
    StreamedWindows,
    Window,
    WindowSource,
    microbatch_positions,
    training_shape,
)
from neobert.data.examples import load_examples
from neobert.data.sources.retries import RetryingReader
from neobert.data.store.prepared_data import PreparedData, TrainingText
from neobert.data.store.segment_store import SegmentStore
from neobert.data.tokenize.encoding_pool import PARALLELISM_ENV
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.plan.size import num_processes
from neobert.plurals import counted

__all__ = ["Cursor", "EvalStream", "Microbatch", "TrainStream"]

# A prepared microbatch takes milliseconds and a window seconds: after a minute without one, the disk hangs.
# A resumed stream first skips what was read, without signs of progress.
SILENCE_LIMIT_S = 60.0
STREAM_SILENCE_LIMIT_S = 600.0
_POLL_S = 1.0
# Evaluation masks are the same in every run, regardless of its seed.
EVALUATION_SEED = 0

Result = TypeVar("Result")
OnProgress = Callable[[], None]
MicrobatchPosition = tuple[Window, int, Cursor]


class _MicrobatchStream:
    """Microbatches of one rank, built ahead by threads and returned in order."""

    def __init__(
        self,
        positions: Callable[
            [WorkerThreads, Callable[[Future[Window]], Window]], Iterator[MicrobatchPosition]
        ],
        assembler: Assembler,
        ranks: tuple[int, int],
        dataset: DatasetConfig,
        reader: RetryingReader | None = None,
        on_progress: OnProgress = lambda: None,
    ) -> None:
        self._loader = WorkerThreads(min(1, dataset.num_workers), "neobert-window")
        self._builders = WorkerThreads(dataset.num_workers, "neobert-batch")
        self._depth = prefetch_depth(dataset)
        self._reader, self._on_progress = reader, on_progress
        pin_on = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._tasks = _rank_tasks(positions(self._loader, self._wait_for_result), assembler, *ranks, pin_on)
        self._ready: deque[Future[Microbatch]] = deque()
        self._failure: BaseException | None = None

    def __iter__(self) -> Iterator[Microbatch]:
        return self

    def __next__(self) -> Microbatch:
        if self._failure is not None:
            raise self._failure
        try:
            for task in islice(self._tasks, self._depth - len(self._ready)):
                self._ready.append(self._builders.submit(task))
            if self._ready:
                return self._wait_for_result(self._ready.popleft())
        except BaseException as error:
            self._failure = error
            self.close()
            raise
        self.close()
        raise StopIteration

    def close(self) -> None:
        self._builders.close()
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_for_result(self, future: Future[Result]) -> Result:
        """Return a result when it is ready.

        Raises DAT010 after too long without progress, retry pauses excluded.
        """
        limit_s = SILENCE_LIMIT_S if self._reader is None else STREAM_SILENCE_LIMIT_S
        last_progress_s = time.monotonic()
        while not wait([future], _POLL_S).done:
            if self._reader is not None:
                last_progress_s = max(last_progress_s, self._reader.last_progress_s)
            silence_s = time.monotonic() - last_progress_s
            if self._reader is not None and silence_s < _POLL_S:
                self._on_progress()
            if silence_s > limit_s:
                raise ProjectError(
                    "DAT010",
                    f"no text received for {limit_s:.0f} s",
                    "check the disk or the connection to the data, and resume",
                    "dataset",
                    EXIT_TRAINING_FAILED,
                )
        return future.result()


def prefetch_depth(dataset: DatasetConfig) -> int:
    """Return the number of microbatches built ahead; 1 without worker threads."""
    return max(1, dataset.num_workers * dataset.prefetch_factor)


def describe_loader(dataset: DatasetConfig, *, is_stream: bool) -> str:
    """Return the resolved settings of the data loader for the log."""
    parts = [
        f"num_workers {dataset.num_workers}",
        f"{counted(prefetch_depth(dataset), 'microbatch', 'microbatches')} ahead",
        "pinned memory" if torch.cuda.is_available() else "no pinned memory (no CUDA device)",
    ]
    if is_stream:
        parts.append(f"{PARALLELISM_ENV} {os.environ.get(PARALLELISM_ENV, 'unset')}")
    return ", ".join(parts)


class TrainStream(_MicrobatchStream):
    """Endless microbatches of one rank, starting at a cursor.

    Microbatch number i of the global order, counted from the cursor, goes to rank i % world_size. Close the
    stream, or use it as a context manager, to stop its threads. While the stream waits for streamed text, it
    calls `on_progress` on progress.
    """

    def __init__(
        self,
        prepared: PreparedData,
        config: RunConfig,
        tokenizer: TokenizerBundle,
        rank: int = 0,
        world_size: int = 1,
        cursor: Cursor | None = None,
        on_progress: OnProgress = lambda: None,
    ) -> None:
        text = prepared.text
        start = cursor or Cursor()
        if isinstance(text, MixedText):
            start = text.with_token_counts(start)
        shape = training_shape(config, text, start.packer).value
        microbatches = num_processes(config) * config.trainer.gradient_accumulation_steps
        source = _build_windows(text, shape, config.seed, microbatches)
        super().__init__(
            partial(microbatch_positions, source, start),
            _build_assembler(config, tokenizer, shape, config.seed),
            (rank, world_size),
            config.dataset,
            text.reader if isinstance(text, DocumentStream) else None,
            on_progress,
        )


def count_microbatches(text: SegmentStore | DocumentStream, config: RunConfig) -> int | None:
    """Count the microbatches of the first epoch, over all ranks; None for a stream."""
    if isinstance(text, DocumentStream):
        return None
    source = PreparedWindows(text, training_shape(config, text).value, config.seed)
    count = 0
    cursor: Cursor | None = Cursor()
    while cursor is not None and cursor.epoch == 0:
        window = source.load(cursor)
        count, cursor = count + len(window), window.after
    return count


class EvalStream:
    """Evaluation microbatches of one rank, in fixed order and with fixed masks; can be iterated repeatedly.

    Every rank gets the same number of microbatches: if the last round is incomplete, the remaining ranks get
    a microbatch that contains only padding.
    """

    def __init__(
        self,
        prepared: PreparedData,
        config: RunConfig,
        tokenizer: TokenizerBundle,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if prepared.eval is None:
            raise ProjectError(
                "DAT001",
                "there is no evaluation text",
                "set dataset.eval_samples or dataset.eval_split",
                "dataset",
            )
        self._config, self._ranks = config, (rank, world_size)
        shape = batch_shape(config, config.trainer.per_device_eval_batch_size, prepared.eval.statistics).value
        self._windows = FixedWindows(prepared.eval, shape)
        self._assembler = _build_assembler(config, tokenizer, shape, EVALUATION_SEED)

    def __iter__(self) -> Iterator[Microbatch]:
        with _MicrobatchStream(
            self._microbatch_positions, self._assembler, self._ranks, self._config.dataset
        ) as stream:
            yield from stream

    def _microbatch_positions(
        self, threads: WorkerThreads, wait_for: Callable[[Future[Window]], Window]
    ) -> Iterator[MicrobatchPosition]:
        positions = microbatch_positions(self._windows, Cursor(EVALUATION_EPOCH), threads, wait_for)
        return islice(positions, self._config.trainer.eval_max_batches)


def _build_windows(text: TrainingText, shape: BatchShape, seed: int, microbatches: int) -> WindowSource:
    if isinstance(text, DocumentStream):
        return StreamedWindows(text, shape, seed)
    if isinstance(text, SteppedText):
        return SteppedWindows(text, shape, seed, microbatches)
    if isinstance(text, MixedText):
        return MixedWindows(text, shape, seed)
    return PreparedWindows(text, shape, seed)


def _rank_tasks(
    positions: Iterator[MicrobatchPosition],
    assembler: Assembler,
    rank: int,
    world_size: int,
    pin_on: int | None,
) -> Iterator[Callable[[], Microbatch]]:
    """Yield, for each round of `world_size` microbatches, the task that builds the microbatch of `rank`."""
    while group := list(islice(positions, world_size)):
        window, index, _ = group[min(rank, len(group) - 1)]
        members, offsets = window.members(index), window.offsets(index)
        if rank >= len(group):
            members, offsets = np.empty(0, dtype=np.int64), 0
        yield partial(_build_microbatch, assembler, window, members, offsets, group[-1][2], pin_on)


def _build_microbatch(
    assembler: Assembler,
    window: Window,
    members: NDArray[np.int64],
    offsets: int | NDArray[np.int64],
    cursor: Cursor,
    pin_on: int | None,
) -> Microbatch:
    started_s = time.perf_counter()
    built = assembler.build(window.store, members, offsets, window.start.epoch, cursor)
    if pin_on is not None:
        # A thread starts on device 0, and pinning there would open a context on it.
        with torch.cuda.device(pin_on):
            built = built.pin_memory()
    return replace(built, collate_ms=(time.perf_counter() - started_s) * 1000)


def _build_assembler(
    config: RunConfig, tokenizer: TokenizerBundle, shape: BatchShape, seed: int
) -> Assembler:
    rule = load_examples(config).target_rule(tokenizer)
    multiple = config.datacollator.pad_to_multiple_of
    filler, types = tokenizer.filler_id, tokenizer.types_pairs
    return Assembler(shape, rule, seed, filler, tokenizer.vocab_size, multiple, types_pairs=types)
