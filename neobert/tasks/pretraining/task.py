"""Masked-language-model pretraining: objective, metrics and data of a rank."""

from __future__ import annotations

from neobert.config.schedules import masking_rates
from neobert.tasks.pretraining.masked_words import mask_words
from neobert.tasks.token_task import token_task
from neobert.training.loop.task import Task, TaskInputs


def build(run: TaskInputs) -> Task:
    """Build objective, metrics and data of a pretraining run."""
    evaluated = run.prepared.eval
    return token_task(
        run,
        masking_rates(run.config.datacollator),
        targets_only=run.config.trainer.masked_logits_only_loss,
        guesser=None if evaluated is None else mask_words(evaluated, run.prepared.tokenizer),
    )
