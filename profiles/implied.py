"""Values that follow from other keys, where neither a file nor an argument states them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, TypeGuard

from neobert.config.document import Document
from neobert.config.layers import GIVEN, lay_over
from neobert.config.nodes import Node, find
from neobert.config.overrides import Override, override_layer
from neobert.config.resolution import EMPTY
from neobert.config.schema import RunConfig
from neobert.config.variables import references_in, substitute
from neobert.tasks.specs import SPECS
from profiles.begun import RUN

STATED = (*GIVEN, RUN)
CADENCE = ("eval_steps", "save_steps")
EVALUATIONS = 4
"""Of a run that is too short for two at the cadence of its profile, and keeps its best checkpoint."""


def with_implied(layers: Sequence[Document], overrides: Sequence[Override]) -> tuple[Document, ...]:
    """Return the layers, and on top of them the values that their keys and the overrides imply."""
    documents = [*layers, *map(override_layer, overrides)]
    root = reduce(lay_over, (document.root for document in documents), EMPTY)
    root, _ = substitute(root, references_in(root))
    implied = {**_of_whole_texts(root), **_of_short_run(root)}
    return (*layers, Document.from_mapping(implied)) if implied else tuple(layers)


def _of_whole_texts(root: Node) -> Mapping[str, Any]:
    """Return that long texts are truncated, if the task cannot split them."""
    task = find(root, ("task",))
    spec = SPECS.get(task.value) if task is not None and isinstance(task.value, str) else None
    if spec is None or not spec.keeps_whole or find(root, ("dataset", "long_documents")) is not None:
        return {}
    return {"dataset": {"long_documents": "truncate"}}


def _of_short_run(root: Node) -> Mapping[str, Any]:
    """Return the cadence of a short run with a best checkpoint, whose length a file or an argument states."""
    names = ("metric_for_best_model", "max_steps", *CADENCE)
    metric, steps, *cadence = (find(root, ("trainer", name)) for name in names)
    if metric is None or metric.value is None or not _is_stated(steps) or any(map(_is_stated, cadence)):
        return {}
    of_profile = RunConfig().trainer.eval_steps if cadence[0] is None else cadence[0].value
    if not isinstance(steps.value, int) or not isinstance(of_profile, int):
        return {}
    if not 0 < steps.value < 2 * of_profile:
        return {}
    return {"trainer": dict.fromkeys(CADENCE, math.ceil(steps.value / EVALUATIONS))}


def _is_stated(node: Node | None) -> TypeGuard[Node]:
    return node is not None and node.origin.kind in STATED
