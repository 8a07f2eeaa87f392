"""Names in run files of masked-language-model pretraining, whose keys are in shared sections."""

from __future__ import annotations

from neobert.tasks.keys import TaskKeys
from neobert.tasks.metric import ACCURACY, LOSS, LOSSES_BY_POSITION, PERPLEXITY

ACCURACY_OF_WORDS = ACCURACY._replace(
    note_on_early_best="A tenth of the targets stay unmasked (datacollator.mask_all), and a model whose "
    "input and output embeddings are tied predicts its input before it has learned anything: accuracy falls "
    "before it rises.",
)

PRETRAINING: TaskKeys[None] = TaskKeys(
    name="pretrain",
    package="neobert.tasks.pretraining",
    metrics=(LOSS, ACCURACY_OF_WORDS, PERPLEXITY, *LOSSES_BY_POSITION),
)
