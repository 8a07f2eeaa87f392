"""Pretraining of causal models: objective, metrics and data of a rank."""

from __future__ import annotations

from collections.abc import Callable

from neobert.config.schema import RunConfig
from neobert.data.store.prepare import PreparedData
from neobert.families.backbone import Backbone
from neobert.parallel import World
from neobert.tasks.next_tokens import EVERY_TOKEN
from neobert.tasks.token_task import token_task
from neobert.training.loop.task import Task


def build(
    config: RunConfig,
    prepared: PreparedData,
    world: World,
    backbone: Backbone,
    *,
    on_sign: Callable[[], None] = lambda: None,
) -> Task:
    """Build objective, metrics and data of a run. `on_sign`: called while waiting for data."""
    return token_task(config, prepared, world, backbone, EVERY_TOKEN, on_sign=on_sign)
