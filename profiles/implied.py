"""Values derived from other keys, unless a file or an argument sets them."""

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
"""Number of evaluations of a run that is too short for three at the interval of its profile."""


def with_implied_values(layers: Sequence[Document], overrides: Sequence[Override]) -> tuple[Document, ...]:
    """Append a layer with the values that the layers and overrides imply."""
    documents = [*layers, *map(override_layer, overrides)]
    root = reduce(lay_over, (document.root for document in documents), EMPTY)
    root, _ = substitute(root, references_in(root))
    implied = {**_values_for_whole_texts(root), **_values_for_short_run(root)}
    return (*layers, Document.from_mapping(implied)) if implied else tuple(layers)


def _values_for_whole_texts(root: Node) -> Mapping[str, Any]:
    """Return `truncate` for dataset.long_documents if the task cannot split texts, unless the key is set."""
    task = find(root, ("task",))
    spec = SPECS.get(task.value) if task is not None and isinstance(task.value, str) else None
    if spec is None or not spec.keeps_texts_whole or find(root, ("dataset", "long_documents")) is not None:
        return {}
    return {"dataset": {"long_documents": "truncate"}}


def _values_for_short_run(root: Node) -> Mapping[str, Any]:
    """Return shorter save and evaluation intervals for a short run with a best checkpoint; else no values.

    They are implied only if the user set max_steps and no interval.
    """
    names = ("metric_for_best_model", "max_steps", *CADENCE)
    metric, steps, *cadence = (find(root, ("trainer", name)) for name in names)
    if (
        metric is None
        or metric.value is None
        or not _is_set_by_user(steps)
        or any(map(_is_set_by_user, cadence))
    ):
        return {}
    of_profile = RunConfig().trainer.eval_steps if cadence[0] is None else cadence[0].value
    if not isinstance(steps.value, int) or not isinstance(of_profile, int):
        return {}
    if not 0 < steps.value <= 2 * of_profile:
        return {}
    return {"trainer": dict.fromkeys(CADENCE, math.ceil(steps.value / EVALUATIONS))}


def _is_set_by_user(node: Node | None) -> TypeGuard[Node]:
    return node is not None and node.origin.kind in STATED
