"""File-based communication of a rehearsal's rank with its parent process. Imports no torch."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neobert.atomic_write import write_atomically
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError

if TYPE_CHECKING:
    from neobert.training.state.trainer import Trainer

MEASURED, COMPILED = "measured", "compiled"
OTHERS, HELPER = "others_at_work", "helper_at_work"
TIMEOUT_S = 120.0
POLL_S = 0.02


def hang_until_killed(trainer: Trainer) -> None:
    """Wait to be killed. Raises `ProjectError` REH002 after 120 seconds, `StopRequested` on a signal."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        trainer.signals.raise_if_requested()
        time.sleep(POLL_S)
    raise ProjectError(
        "REH002",
        f"the launcher did not end the rehearsal within {TIMEOUT_S:g} s of its last step",
        "check whether the launcher was stopped or suspended, then run the command again",
        exit_code=EXIT_TRAINING_FAILED,
    )


def wait_for_parent(trainer: Trainer, measured: Path) -> None:
    """Wait until the parent has removed the file `measured`, for at most 120 seconds.

    Raises `StopRequested` on a signal.
    """
    deadline_s = time.monotonic() + TIMEOUT_S
    while measured.exists() and time.monotonic() < deadline_s:
        trainer.signals.raise_if_requested()
        time.sleep(POLL_S)


class ParentChannel:
    """Interface of one rank to the parent process: files for its stage, measurements and results."""

    def __init__(self, folder: Path, part: str, rank: int) -> None:
        self._results, self._stage = folder / f"{part}_rank{rank}.json", folder / f"{part}_stage_rank{rank}"
        self._measured, self._compiled = (folder / f"{name}_rank{rank}.json" for name in (MEASURED, COMPILED))
        self._others, self._helper = folder / OTHERS, folder / HELPER

    def report_stage(self, stage: str) -> None:
        """Write the name of the current stage for the parent."""
        self._stage.write_text(stage, encoding="utf-8")

    def wait_for_graphs(self, trainer: Trainer) -> None:
        """Report that the step is compiled; wait until the evaluation is too, if a helper compiles it."""
        _write_results(self._compiled, {})
        self._wait_while(self._helper, "compiling the evaluation", trainer)

    def wait_until_alone(self, trainer: Trainer) -> None:
        """Wait until the parent runs no other checks (the file `others_at_work` is gone)."""
        self._wait_while(self._others, "waiting for the other checks", trainer)

    def _wait_while(self, file: Path, stage: str, trainer: Trainer) -> None:
        if file.exists():
            self.report_stage(stage)
        while file.exists():
            trainer.signals.raise_if_requested()
            time.sleep(POLL_S)

    def pause(self, trainer: Trainer, results: dict[str, Any]) -> None:
        """Write the performance measurements, then wait until the parent has read them."""
        _write_results(self._measured, results)
        wait_for_parent(trainer, self._measured)

    def finish(self, trainer: Trainer, results: dict[str, Any]) -> None:
        """Write all results, then wait to be killed."""
        _write_results(self._results, results)
        hang_until_killed(trainer)

    def report_out_of_memory(self, error: Exception, results: dict[str, Any]) -> None:
        """Write the results so far, with the message and the stage of an out-of-memory error."""
        message = f"{self._stage.read_text(encoding='utf-8')}: {str(error).splitlines()[0]}"
        _write_results(self._results, results | {"out_of_memory": message})


def _write_results(path: Path, results: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(results, default=sorted).encode())
