"""Masked-language-model pretraining: objective, metrics and data of a rank."""

from __future__ import annotations

from collections.abc import Callable

from neobert.config.schedules import masking_rates
from neobert.config.schema import RunConfig
from neobert.data.store.prepare import PreparedData
from neobert.families.backbone import Backbone
from neobert.parallel import World
from neobert.tasks.pretraining.masked_words import masked_words_of
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
    """Build objective, metrics and data of a pretraining run. `on_sign`: called while waiting for data."""
    return token_task(
        config,
        prepared,
        world,
        backbone,
        masking_rates(config.datacollator),
        on_sign=on_sign,
        targets_only=config.trainer.masked_logits_only_loss,
        guesser=None if prepared.eval is None else masked_words_of(prepared.eval, prepared.tokenizer),
    )
