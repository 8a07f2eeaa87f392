"""Names in run files of causal pretraining, whose keys are in shared sections."""

from __future__ import annotations

from neobert.tasks.keys import TaskKeys
from neobert.tasks.metric import ACCURACY, LOSS, PERPLEXITY

CAUSAL: TaskKeys[None] = TaskKeys(
    name="causal", package="neobert.tasks.causal", metrics=(LOSS, ACCURACY, PERPLEXITY)
)
