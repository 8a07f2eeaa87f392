"""Pretraining of causal models: objective, metrics and data of a rank."""

from __future__ import annotations

from neobert.tasks.next_tokens import EVERY_TOKEN
from neobert.tasks.token_task import token_task
from neobert.training.loop.task import Task, TaskInputs


def build(run: TaskInputs) -> Task:
    """Build objective, metrics and data of a causal pretraining run."""
    return token_task(run, EVERY_TOKEN)
