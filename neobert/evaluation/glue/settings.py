"""Run config of one task and seed. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.config.schema import HfModelConfig, ModelConfig
from neobert.evaluation.glue.task import GlueTask
from neobert.families.hf.spec import HF, read_model_settings
from neobert.families.neobert.spec import NEOBERT
from neobert.families.table import family_by_model_type
from neobert.tasks.classification.section import CLASSIFICATION

PROFILES = {"cpu": "cpu", "cuda": "gpu"}
WARM = "(warm start)"
BATCH_SIZE = 32
EVALUATIONS_PER_EPOCH = 2
PATIENCE = 6
"""Evaluations without improvement after which a run ends; they cover three epochs."""
SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "rope", "rope_theta", "rms_norm", "norm_eps", "hidden_act",
    "embedding_multiplier",
)  # fmt: skip
"""Keys of config.json that are keys of the section `model`."""


@dataclass(frozen=True, slots=True)
class StartWeights:
    """The weights that runs start from.

    Attributes:
        label: name of the weights in reports.
        checkpoint: checkpoint folder, or None for random weights.
        tasks: tasks on which the weights were fine-tuned, in this order.
    """

    label: str
    checkpoint: Path | None
    tasks: tuple[str, ...] = ()

    def continue_from(self, task: str, checkpoint: Path) -> StartWeights:
        """Return the weights of `checkpoint`, the best of a run on `task` that started from these weights."""
        tasks = (*self.tasks, task)
        return StartWeights(f"{', then '.join(tasks)} {WARM}", checkpoint, tasks)


def run_settings(
    task: GlueTask,
    seed: int,
    *,
    model: Mapping[str, Any],
    tokenizer: Path,
    start: StartWeights,
    data: Path,
    train_rows: int,
    output: Path,
    device: str,
) -> dict[str, Any]:
    """Return the content of the run file of a task and seed.

    `model` is the content of the encoder's config.json, `tokenizer` its folder, `data` the folder of the
    prepared files, `output` the run directory.
    """
    steps_per_epoch = math.ceil(train_rows / BATCH_SIZE)
    eval_steps = math.ceil(steps_per_epoch / EVALUATIONS_PER_EPOCH)
    positions = int(model.get("max_position_embeddings") or model.get("max_length") or task.max_length)
    return {
        "profile": PROFILES[device],
        "task": CLASSIFICATION.name,
        "seed": seed,
        "model": _model_section(model, tokenizer, start, positions),
        "tokenizer": {"path": str(tokenizer), "vocab_size": None},
        "dataset": {
            "name": None,
            "path": str(data),
            "train_split": "train",
            "validation_split": None,
            "text_column": "text",
            "max_seq_length": min(task.max_length, positions),
            "long_documents": "truncate",
        },
        CLASSIFICATION.name: {
            "problem": "regression" if task.is_regression else "classes",
            "label_column": "label",
            "pair_column": "pair" if task.pair else None,
            **_pooling_keys(model, tokenizer),
            "label_names": None if task.is_regression else list(task.labels),
        },
        "optimizer": {"lr": 5e-5, "betas": [0.9, 0.98], "weight_decay": 0.01},
        "scheduler": {"name": "linear", "warmup_steps": 0, "warmup_percent": 6.0, "final_lr_ratio": 0.0},
        "trainer": {
            "output_dir": str(output),
            "resume_from_checkpoint": "auto",
            "max_steps": task.epochs * steps_per_epoch,
            "per_device_train_batch_size": BATCH_SIZE,
            "per_device_eval_batch_size": BATCH_SIZE,
            "gradient_accumulation_steps": 1,
            "eval_max_batches": None,
            "eval_steps": eval_steps,
            "save_steps": eval_steps,
            "save_total_limit": 2,
            "logging_steps": min(20, eval_steps),
            "metric_for_best_model": f"eval/{task.metrics[0]}",
            "early_stopping_patience": PATIENCE,
        },
        "datacollator": {"pack_sequences": False},
        "guard": {"on_degradation": "warn", "on_loss_spike": "warn"},
    }


def _model_section(
    model: Mapping[str, Any], folder: Path, start: StartWeights, positions: int
) -> dict[str, Any]:
    checkpoint = None if start.checkpoint is None else str(start.checkpoint)
    if is_neobert(model):
        sizes = {name: model[name] for name in SIZES if name in model}
        own = {"max_position_embeddings": positions, "tie_word_embeddings": False}
        return {**sizes, **own, "pretrained_checkpoint": checkpoint}
    weights = {"config": str(folder)} if checkpoint is None else {"pretrained_checkpoint": checkpoint}
    return {"type": HF.name, **weights}


def is_neobert(model: Mapping[str, Any]) -> bool:
    """Return whether a config.json describes this project's model, not a transformers encoder."""
    return family_by_model_type(str(model.get("model_type"))) is NEOBERT


def _pooling_keys(model: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return the key `pooling` if the transformers classifier supports only one; else an empty dict."""
    if is_neobert(model):
        return {}
    poolings = tuple(read_model_settings(HfModelConfig(config=str(folder)))[1].poolings)
    return {"pooling": poolings[0]} if len(poolings) == 1 else {}


def missing_size_keys(model: Mapping[str, Any]) -> list[str]:
    """Return the keys of sizes that the section `model` needs and a config.json lacks."""
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    assert set(SIZES) <= set(ModelConfig.__dataclass_fields__)
    return [name for name in needed if name not in model]
