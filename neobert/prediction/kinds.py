"""The task of a model folder, by the head that its config.json names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from neobert.errors import EXIT_USAGE, ProjectError
from neobert.families.table import is_causal
from neobert.printable import printable
from neobert.runfiles.model_folder import CODE, read_json
from neobert.tasks.spec import TaskSpec
from neobert.tasks.specs import SPECS

Prediction = Mapping[str, Any]
"""Values of the columns that a prediction adds to its row."""
PREDICTION, PROBABILITY = "prediction", "probability"
NEOBERT_HEADS = {"LMHead": "MaskedLM"}
"""NeoBERT's class names that differ from the names in transformers."""


def read_model_task(folder: Path) -> TaskSpec:
    """Return the first task that has the head of a model folder. Raises `ProjectError` if there is none."""
    settings = read_json(folder / "config.json")
    names = settings.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    for own, theirs in NEOBERT_HEADS.items():
        name = name.removesuffix(own) + theirs if name.endswith(own) else name
    specs = [spec for spec in SPECS.values() if find_spec(f"{spec.keys.package}.prediction")]
    # Of two tasks with one head, the first in the table predicts.
    for spec in specs:
        if name.endswith(spec.auto_class.removeprefix("AutoModelFor")):
            return spec
    if is_causal(str(settings.get("model_type"))):
        hint = "continue prompts with `neobert-launch evaluate generation`, or `chat` with the model"
        raise ProjectError(CODE, "the model predicts next tokens, not labels", hint, str(folder), EXIT_USAGE)
    message = f"the model has no head to predict with: its architecture is {printable(name) or 'not named'}"
    tasks = ", ".join(spec.name for spec in specs)
    hint = f"pass a model of one of the tasks {tasks}; `encode` needs no head"
    raise ProjectError(CODE, message, hint, str(folder), EXIT_USAGE)
