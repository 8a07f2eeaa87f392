"""Table of tasks by name, which is the value of the key `task`; the first one is the default."""

from __future__ import annotations

from typing import Any

from neobert.tasks.causal.section import CAUSAL
from neobert.tasks.classification.section import CLASSIFICATION
from neobert.tasks.contrastive.section import CONTRASTIVE
from neobert.tasks.keys import TaskKeys
from neobert.tasks.multiple_choice.section import MULTIPLE_CHOICE
from neobert.tasks.pretraining.section import PRETRAINING
from neobert.tasks.question_answering.section import QUESTION_ANSWERING
from neobert.tasks.sft.section import SFT
from neobert.tasks.token_classification.section import TOKEN_CLASSIFICATION

TASKS: dict[str, TaskKeys[Any]] = {
    task.name: task
    for task in (
        PRETRAINING,
        CLASSIFICATION,
        TOKEN_CLASSIFICATION,
        QUESTION_ANSWERING,
        MULTIPLE_CHOICE,
        CAUSAL,
        SFT,
        CONTRASTIVE,
    )
}
