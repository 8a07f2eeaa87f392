"""Names in run files of causal pretraining, whose keys are in shared sections."""

from __future__ import annotations

from neobert.tasks.keys import TaskKeys
from neobert.tasks.metric import TOKEN_METRICS

CAUSAL: TaskKeys[None] = TaskKeys(name="causal", package="neobert.tasks.causal", metrics=TOKEN_METRICS)
