"""LoRA adapters (arXiv:2106.09685), using peft: adding, saving, loading and merging them.

In addition to the files of every checkpoint, a checkpoint with an adapter contains:

model.safetensors                  model with the adapter merged, which loads and exports like any other model
adapter/                           adapter and head, for `peft.PeftModel.from_pretrained`
trainer_state/frozen.safetensors   frozen weights, which merged weights do not give back bit for bit; of a
                                   sharded run in trainer_state/frozen/

Shapes: W frozen weight [outputs, inputs], A [r, inputs], B [outputs, r].
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from neobert.adapters.spec import INSTALL, is_installed, target_modules, trains_head, unknown_targets
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.export.folder import write_hf_folder
from neobert.export.lazy_weights import METADATA, LazyWeights, write_lazily
from neobert.export.weights import load_state, read_weights, unique_weights
from neobert.families.backbone import Backbone
from neobert.families.table import model_shape
from neobert.plurals import listed
from neobert.printable import printable
from neobert.runfiles.checkpoint.state import STATE_DIR
from neobert.tasks.specs import spec_of
from neobert.training.loop.task import Task

log = logging.getLogger(__name__)

FOLDER, ADAPTER_FILE, FROZEN = "adapter", "adapter_model.safetensors", "frozen"
FROZEN_FILE = f"{FROZEN}.safetensors"
NAME = "default"
"""Name of the adapter in peft; a model has only this one."""
BASE, FACTOR_A, FACTOR_B = ".base_layer.", f".lora_A.{NAME}.weight", f".lora_B.{NAME}.weight"
PREFIX = "base_model.model."
"""Prefix of weight names in peft's files."""
PEFT_TASKS = {
    "AutoModelForSequenceClassification": "SEQ_CLS",
    "AutoModelForTokenClassification": "TOKEN_CLS",
    "AutoModelForQuestionAnswering": "QUESTION_ANS",
    "AutoModelForCausalLM": "CAUSAL_LM",
}
"""peft's task types by auto class; the other auto classes have none."""


def add_adapter(backbone: Backbone, config: RunConfig) -> None:
    """Freeze the encoder and add LoRA factors in place, as the config section `adapter` requests.

    A head that predicts labels stays trainable; one that predicts tokens is frozen. B is initialized to
    zeros, so the model's outputs do not change. Raises `ProjectError` TSK008 if peft is not installed or
    `adapter.target_modules` has an unknown layer.
    """
    if not is_installed():
        message = "adapter.type lora needs peft, which is not installed"
        raise ProjectError("TSK008", message, INSTALL, "adapter")
    model = backbone.model
    shape = model_shape(config, model.config.vocab_size)
    if unknown := sorted(unknown_targets(config.adapter, shape)):
        raise ProjectError(
            "TSK008",
            f"adapter.target_modules has unknown layers: {printable(listed(unknown))}",
            f"choose from {', '.join(shape.linear_layers)}",
            "adapter.target_modules",
        )
    from peft import inject_adapter_in_model

    inject_adapter_in_model(lora_config(model, config), model, NAME)
    parts = trained_prefixes(backbone, config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_lora_factor(name) or name.startswith(parts))
    log.info("adapter: %s trained parameters", f"{model.num_parameters(only_trainable=True):,}")


def lora_config(model: PreTrainedModel, config: RunConfig, **options: Any) -> Any:
    """Return the `peft.LoraConfig` of a run; `options` are further arguments of `LoraConfig`."""
    from peft import LoraConfig

    adapter, shape = config.adapter, model_shape(config, model.config.vocab_size)
    return LoraConfig(
        task_type=PEFT_TASKS.get(spec_of(config).auto_class),
        base_model_name_or_path=config.model.pretrained_checkpoint,
        r=adapter.r,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=list(target_modules(adapter, shape)),
        **options,
    )


def with_adapter(task: Task, config: RunConfig) -> AdapterTask:
    """Return the task of a model with an adapter, whose checkpoints contain the adapter."""
    parts = trained_prefixes(task.backbone, config)
    head = [name.removesuffix(".") for name in parts] or None
    settings = lora_config(task.model, config, modules_to_save=head, inference_mode=True)
    own = {field.name: getattr(task, field.name) for field in fields(task)}
    scale = config.adapter.alpha / config.adapter.r
    return AdapterTask(**own, scale=scale, settings=settings, trained_prefixes=parts)


def trained_prefixes(backbone: Backbone, config: RunConfig) -> tuple[str, ...]:
    """Return the name prefixes of head weights trained along with the factors; empty if the head is fixed."""
    return backbone.head_parts if trains_head(config) else ()


def is_lora_factor(name: str) -> bool:
    """Return whether a parameter of this name is a LoRA factor (A or B)."""
    return name.endswith((FACTOR_A, FACTOR_B))


def merge_adapter(weights: Mapping[str, Tensor], scale: float) -> Mapping[str, Tensor]:
    """Return the weights with the adapter merged, W + scale * B @ A in fp32, under the base names.

    They are lazy if `weights` are.
    """

    def value(name: str) -> Tensor:
        layer, _, _ = name.partition(BASE)
        if not name.endswith(f"{BASE}weight"):
            return weights[name]  # a bias of the layer, or a weight elsewhere
        change = weights[layer + FACTOR_B].float() @ weights[layer + FACTOR_A].float()
        return weights[name] + scale * change

    found = {name.replace(BASE, "."): partial(value, name) for name in weights if not is_lora_factor(name)}
    if isinstance(weights, LazyWeights):
        return LazyWeights(found, {name.replace(BASE, "."): size for name, size in weights.sizes.items()})
    return {name: compute() for name, compute in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTask(Task):
    """Task whose checkpoints contain an adapter.

    Attributes:
        scale: factor of B @ A, which is alpha / r.
        settings: the `peft.LoraConfig` to save, with which peft loads the adapter and its head.
        trained_prefixes: name prefixes of the weights of a trained head.
    """

    scale: float
    settings: Any
    trained_prefixes: tuple[str, ...]

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the merged model, the adapter with the head, and the frozen weights to `folder`."""
        write_hf_folder(self.model, self.tokenizer_files, folder, merge_adapter(weights, self.scale))
        trained = {name: weights[name] for name in weights if self._is_trained(name)}
        (folder / FOLDER).mkdir(exist_ok=True)
        self.settings.save_pretrained(folder / FOLDER)
        _write_tensors(
            folder / FOLDER / ADAPTER_FILE, {PREFIX + peft_name(name): each for name, each in trained.items()}
        )
        frozen = {name: partial(weights.__getitem__, name) for name in weights if name not in trained}
        if isinstance(weights, LazyWeights):
            (folder / STATE_DIR / FROZEN).mkdir()
            write_lazily(LazyWeights(frozen, weights.sizes), folder / STATE_DIR / FROZEN)
        else:
            _write_tensors(folder / STATE_DIR / FROZEN_FILE, {name: read() for name, read in frozen.items()})

    def load(self, folder: Path) -> None:
        """Load frozen weights, adapter and head of a checkpoint.

        Raises `ProjectError` EXP004 if a file is missing or damaged, EXP005 if names or shapes differ.
        """
        own = unique_weights(self.model)
        frozen = folder / STATE_DIR / FROZEN
        state = read_weights(frozen if frozen.is_dir() else folder / STATE_DIR / FROZEN_FILE)
        adapter = read_weights(folder / FOLDER / ADAPTER_FILE)
        names = {PREFIX + peft_name(name): name for name in own if self._is_trained(name)}
        state |= {names.get(name, name): each for name, each in adapter.items()}
        wrong = {*own} ^ {*state} | {n for n in own if n in state and own[n].shape != state[n].shape}
        if wrong:
            raise ProjectError(
                "EXP005",
                f"tensors are missing, unexpected or of another shape: {printable(listed(sorted(wrong)))}",
                "set the keys adapter.* as in the run that saved the checkpoint",
                str(folder),
            )
        load_state(self.model, state)

    def _is_trained(self, name: str) -> bool:
        return is_lora_factor(name) or name.startswith(self.trained_prefixes)


def peft_name(name: str) -> str:
    """Return the name of a weight in peft's files, without `PREFIX`: peft omits the adapter's name."""
    return name.replace(f".{NAME}.weight", ".weight") if is_lora_factor(name) else name


def _write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: each.detach().contiguous() for name, each in tensors.items()}, file, METADATA)
