"""Loading of a predictor for a model folder."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from neobert.encoding.placement import placement
from neobert.prediction.kinds import task_of_model
from neobert.prediction.predictor import Predictor


def load_predictor(
    folder: Path,
    *,
    device: str | None = None,
    dtype: str | None = None,
    max_length: int | None = None,
    every_class: bool = False,
) -> Predictor[Any]:
    """Load a model with the predictor of its task. Raises `ProjectError` for an unusable folder.

    Args:
        every_class: add the probability of each class, where a text has a class.
    """
    module = import_module(f"{task_of_model(folder).keys.package}.prediction")
    predictor: Predictor[Any] = module.PREDICTOR.load(folder, *placement(device, dtype), max_length)
    predictor.every_class = every_class
    return predictor
