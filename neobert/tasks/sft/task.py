"""Supervised fine-tuning: objective, metrics and data of a rank."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from transformers import GenerationConfig

from neobert.config.schedules import MaskingRates
from neobert.config.schema import RunConfig
from neobert.data.store.prepared_data import PreparedData
from neobert.data.store.segment_store import SegmentStore
from neobert.data.tokenize.encoding import SUPERVISED
from neobert.families.backbone import Backbone
from neobert.families.table import initial_weights
from neobert.runfiles.model_folder import folder_of_weights
from neobert.tasks.token_task import token_task
from neobert.training.loop.task import Task, TaskInputs

MARGIN = 1.25
"""Capacity of the head, which has static shapes, relative to the mean number of supervised tokens."""


def build(run: TaskInputs) -> Task:
    """Build objective, metrics and data of a supervised fine-tuning run."""
    train = run.prepared.train
    assert isinstance(train, SegmentStore), "conversations are not streamed"
    num_supervised = sum(int(marks.sum()) for marks in train.column(SUPERVISED.name))
    supervised = min(1.0, MARGIN * num_supervised / train.num_tokens)
    rates = MaskingRates(supervised, supervised)
    run.backbone.model.generation_config = saved_generation_config(run.config, run.backbone, run.prepared)
    return token_task(run, rates)


def saved_generation_config(
    config: RunConfig, backbone: Backbone, prepared: PreparedData
) -> GenerationConfig:
    """Return the initial weights' generation config, with the tokens that end supervised turns as stops."""
    generation, weights = backbone.model.generation_config, initial_weights(config)
    if weights is not None:
        with suppress(OSError):  # weights without a generation_config.json
            generation = GenerationConfig.from_pretrained(folder_of_weights(Path(weights)))
    known = generation.eos_token_id
    known = known if isinstance(known, list) else [] if known is None else [known]
    stops = sorted(map(int, prepared.report["train"].get("stops", {})))
    generation.eos_token_id = [*known, *(token for token in stops if token not in known)] or None
    return generation
