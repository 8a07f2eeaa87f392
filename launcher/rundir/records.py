"""Readers for files of a run directory that may be written meanwhile: a partial last line is not an error."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from launcher.io.files import open_regular
from neobert.runfiles.checkpoint.refusal import CODE as BROKEN_RESUME
from neobert.runfiles.json_values import is_count, is_number, is_text, is_text_mapping, parse_object
from neobert.runfiles.run_dir import OUTCOME, heartbeat_path

Record = dict[str, Any]
FIRST_STEP, NUM_RANKS = "first_step", "num_ranks"
"""Keys of a launch in the manifest: the step of the checkpoint that it starts from, and its ranks."""
LAST_LINES_BYTES = 64 * 1024
LARGEST_JSON_BYTES = 32 * 2**20
LONGEST_LINE_BYTES = 2**20
"""A line of metrics has about 1 kB; far longer ones were not written by the trainer."""
# The trainer writes the step as the first key.
STEP_FIRST = re.compile(rb'\{"step": (\d{1,18})[,}]')


def _is_loss(value: object) -> bool:
    return is_count(value) or isinstance(value, float)  # NaN and infinity are what a person has to see


def _is_exit_code(value: object) -> bool:
    return type(value) is int and 0 <= value < 256


def _are_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(map(is_number, value.values()))


Checks = Mapping[str, Callable[[object], bool]]
BEAT_VALUES: Checks = {
    **dict.fromkeys(("phase", "phase_doing", "ts_utc", "last_progress_ts_utc"), is_text),
    **dict.fromkeys(
        (
            *("seq", "step", "last_progress_step", "max_steps", "tokens_total", "recompiles"),
            *("phase_done", "phase_total"),
        ),
        is_count,
    ),
    **dict.fromkeys(("tokens_per_second", "eta_s", "work_at_risk_min", "last_checkpoint_step"), is_number),
    **dict.fromkeys(("gpu_mem_reserved_mib", "gpu_mem_total_mib", "host_rss_mib"), is_number),
    **dict.fromkeys(("boot_s", "mfu", "data_wait_ms", "learning_rate", "grad_norm"), is_number),
    **dict.fromkeys(("attention_kernel", "compute_dtype", "boot_id"), is_text),
    "loss": _is_loss,
    **dict.fromkeys(("phase_longest_s", "warnings", "nsa"), _are_numbers),
    "warning_messages": is_text_mapping,
}
OUTCOME_VALUES: Checks = {
    "status": is_text,
    "exit_code": _is_exit_code,
    "step": is_count,
    **dict.fromkeys(("message", "code", "hint"), is_text),
}


def drop_invalid_values(record: Record, checks: Checks) -> Record:
    """Return the record without values that fail their check; keys without a check are kept."""
    return {name: value for name, value in record.items() if name not in checks or checks[name](value)}


def drop_invalid_metrics(record: Record) -> Record:
    """Return the numbers of a record, which may be NaN or infinite; `step` must be a count."""
    return {
        name: value for name, value in record.items() if (is_count if name == "step" else _is_loss)(value)
    }


def read_json(path: Path) -> Record:
    """Read a JSON object of a run directory; empty if the file is missing, incomplete or invalid."""
    try:
        return parse_json(path)
    except (OSError, ValueError):
        return {}


def parse_json(path: Path) -> Record:
    """Read a JSON object. Raises OSError or ValueError with the reason."""
    with open_regular(path) as file:
        text = file.read(LARGEST_JSON_BYTES + 1)
    if len(text) > LARGEST_JSON_BYTES:
        raise ValueError(f"larger than {LARGEST_JSON_BYTES // 2**20} MiB")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("not valid JSON") from None
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


def get_list(record: Record, name: str) -> list[Any]:
    """Return the list under this key; empty if the key is missing or has another type."""
    value = record.get(name)
    return value if isinstance(value, list) else []


def get_records(record: Record, name: str) -> list[Record]:
    """Return the dictionaries in the list under this key; empty if there is no list."""
    return [each for each in get_list(record, name) if isinstance(each, dict)]


def read_outcome(folder: Path) -> Record:
    """Read the outcome of a session; empty if there is none, or if it is damaged."""
    outcome = read_json(folder / OUTCOME)
    return outcome if drop_invalid_values(outcome, OUTCOME_VALUES) == outcome else {}


def outcome_for_state(outcome: Record, manifest: Record) -> Record:
    """Return the outcome that determines the state of a run.

    A finished run stays finished if a later attempt to resume it was refused.


    Args:
        outcome: outcome of the last session.
        manifest: content of manifest.json, which has the outcomes of earlier launches.
    """
    launches = reversed(get_records(manifest, "earlier"))
    earlier = [each for launch in launches if isinstance(each := launch.get("outcome"), dict)]
    trained = next((each for each in (outcome, *earlier) if each.get("code") != BROKEN_RESUME), {})
    return drop_invalid_values(trained, OUTCOME_VALUES) if trained.get("status") == "finished" else outcome


def failure_reason(outcome: Record) -> str:
    """Return a failed run's error message and code; empty if the run did not fail."""
    message, code = str(outcome.get("message", "")), outcome.get("code")
    return f"{message} [{code}]" if message and code else message


def file_stamp(path: Path) -> tuple[int, int] | None:
    """Return the inode and modification time of a file, which change with a write; None if it is missing.

    The file is opened because `stat` of a name may be stale on network file systems.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def last_record(path: Path) -> Record:
    """Return the last complete line of a JSONL file as a record; empty if there is none."""
    lines = last_lines(path, LAST_LINES_BYTES)
    return next((record for line in reversed(lines) if (record := parse_object(line)) is not None), {})


def last_lines(path: Path, num_bytes: int) -> list[bytes]:
    """Return the lines in the last `num_bytes` of a file, of which the first and the last may be incomplete.

    Returns an empty list if the file cannot be read.
    """
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
            return file.read(num_bytes).splitlines()
    except OSError:
        return []


def last_heartbeat(folder: Path, rank: int) -> Record:
    """Return the newest heartbeat of a rank, from the previous file `.1` if the current file has none."""
    path = heartbeat_path(folder, rank)
    beat = last_record(path) or last_record(path.with_name(f"{path.name}.1"))
    return drop_invalid_values(beat, BEAT_VALUES)


def read_metrics(path: Path) -> list[Record]:
    """Read the lines of a metrics file, without incomplete or invalid ones; empty if it cannot be read."""
    return [record for line in iterate_lines(path) if (record := parse_metrics(line)) is not None]


def iterate_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; no lines if the file cannot be read."""
    with suppress(OSError), open_regular(path) as file:
        yield from _lines_of_bounded_length(file)


def _lines_of_bounded_length(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; lines above `LONGEST_LINE_BYTES` are split, to bound the memory."""
    return iter(lambda: file.readline(LONGEST_LINE_BYTES), b"")


def parse_metrics(line: bytes) -> Record | None:
    """Parse a line of metrics.jsonl; return None if the line is incomplete or not a JSON object."""
    record = parse_object(line)
    return None if record is None else drop_invalid_metrics(record)


@dataclass(slots=True)
class MetricsTail:
    """Incremental reader of a metrics file, for lines after a step.

    The trainer may truncate the file when it resumes.
    """

    path: Path
    after_step: int = -1
    _offset: int = field(default=0, init=False)
    _inode: int = field(default=0, init=False)

    def skip_existing(self) -> None:
        """Skip the existing lines, which belong to an earlier session."""
        try:
            status = self.path.stat()
        except OSError:
            return
        self._inode, self._offset = status.st_ino, status.st_size

    def read_new(self) -> list[Record]:
        """Return the complete lines since the last call with a later step than every line before."""
        return list(self._iterate_new())

    def _iterate_new(self) -> Iterator[Record]:
        after_step = self.after_step
        for line in self._complete_lines():
            step = STEP_FIRST.match(line)
            if step is not None and int(step[1]) <= after_step:
                continue  # skips a long history quickly after the trainer has truncated the file
            record = parse_metrics(line) or {}
            if is_count(record.get("step")) and record["step"] > after_step:
                self.after_step = max(self.after_step, record["step"])
                yield record

    def _complete_lines(self) -> Iterator[bytes]:
        try:
            with open_regular(self.path) as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                file.seek(self._offset)
                for line in _lines_of_bounded_length(file):
                    if not line.endswith(b"\n") and len(line) < LONGEST_LINE_BYTES:
                        return
                    self._offset += len(line)
                    yield line
        except OSError:
            return
