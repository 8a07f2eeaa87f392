"""Writer of the guesses at masked words, samples.json."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from neobert.atomic_write import describe_write_error, write_atomically
from neobert.runfiles.json_values import parse_object
from neobert.runfiles.samples import FILE_NAME, Evaluation, Samples, parse_samples
from neobert.training.state.trainer import Trainer

log = logging.getLogger(__name__)


class GuessLog:
    """Writer of samples.json: the model's guesses at the task's masked words. Does nothing if it has none."""

    def __init__(self, trainer: Trainer) -> None:
        self._guesser = trainer.task.guesser
        if self._guesser is not None:
            kept = _read_samples(trainer.run_dir / FILE_NAME).before(trainer.progress.first_open_step)
            self._samples = kept if kept.texts == self._guesser.texts else Samples(self._guesser.texts)

    def add(self, trainer: Trainer) -> None:
        """Add the guesses of this step to the file. A failed write is logged and does not end the run.

        All ranks run the model if it is sharded; otherwise only rank 0.
        """
        world, objective, backbone = trainer.world, trainer.task.objective, trainer.task.backbone
        if self._guesser is None or not (world.is_main or world.is_sharded):
            return
        objective.eval()
        try:
            with world.gather_parameters_outside_blocks(trainer.module, backbone.ends), world.autocast():
                guesses = self._guesser.guesses(backbone, world.device)
        finally:
            objective.train()
        if world.is_main:
            self._samples = self._samples.with_evaluation(Evaluation(trainer.progress.step, guesses))
            content = json.dumps(self._samples.as_json(), ensure_ascii=False)
            try:
                write_atomically(trainer.run_dir / FILE_NAME, content.encode() + b"\n")
            except OSError as error:
                log.warning("%s: %s", FILE_NAME, describe_write_error(error))


def _read_samples(path: Path) -> Samples:
    try:
        return parse_samples(parse_object(path.read_bytes()) or {})
    except OSError:
        return Samples()
