"""Construction of a run's task by its name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from neobert.config.schema import RunConfig
from neobert.data.store.prepare import PreparedData
from neobert.parallel import World
from neobert.tasks.table import spec_of
from neobert.training.loop.task import Task


def build_task(
    config: RunConfig,
    prepared: PreparedData,
    world: World,
    *,
    is_fresh: bool,
    on_sign: Callable[[], None] = lambda: None,
) -> Task:
    """Import the module of the config's task, and build the task.

    Args:
        is_fresh: initialize from `model.pretrained_checkpoint` or randomly; False for a resumed run, which
            loads its checkpoint afterwards.
        on_sign: called on progress while waiting for text.

    Raises `ProjectError` if tokenizer, weights or kernels are incompatible with the config.
    """
    task: Task = import_module(spec_of(config).module).build(
        config, prepared, world, is_fresh=is_fresh, on_sign=on_sign
    )
    return task
