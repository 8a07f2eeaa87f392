"""Low-rank adapters (LoRA, arXiv:2106.09685) through peft: added, saved next to their encoder, merged.

In addition to the files of every checkpoint, a checkpoint with an adapter contains:

model.safetensors                  the model with the adapter merged into it: loads and exports as any other
adapter/                           the adapter and the head, for `peft.PeftModel.from_pretrained`
trainer_state/frozen.safetensors   the frozen weights: a merged sum does not give them back to the last bit

W frozen weight [outputs, inputs], A [r, inputs], B [outputs, r].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from neobert.adapters.spec import INSTALL, is_installed, linear_layers, target_modules
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.export.folder import METADATA, write_hf_folder
from neobert.export.weights import own_weights, read_weights
from neobert.model.pretrained import NeoBERTPreTrainedModel
from neobert.parallel import part_like
from neobert.plurals import listed
from neobert.printable import printable
from neobert.runfiles.checkpoint.state import STATE_DIR
from neobert.training.loop.task import Task

FOLDER, ADAPTER_FILE, FROZEN_FILE = "adapter", "adapter_model.safetensors", "frozen.safetensors"
NAME = "default"
"""peft's name of the only adapter of a model."""
BASE, FACTOR_A, FACTOR_B = ".base_layer.weight", f".lora_A.{NAME}.weight", f".lora_B.{NAME}.weight"
PREFIX = "base_model.model."
"""Prefix of the names of weights in peft's files."""
PEFT_TASKS = {
    "NeoBERTForSequenceClassification": "SEQ_CLS",
    "NeoBERTForTokenClassification": "TOKEN_CLS",
}


def add_adapter(model: NeoBERTPreTrainedModel, config: RunConfig) -> None:
    """Freeze the encoder and add the factors that `adapter` requests, in place; the head is trained whole.

    B is initialized to zeros, so the model's outputs do not change. Raises `ProjectError` TSK008 without
    peft, and for a layer that the blocks lack.
    """
    if not is_installed():
        raise ProjectError("TSK008", "adapter.type lora needs peft, not installed here", INSTALL, "adapter")
    unknown = sorted(set(target_modules(config)) - linear_layers(config).keys())
    if unknown:
        raise ProjectError(
            "TSK008",
            f"adapter.target_modules names no linear layer of the blocks: {printable(listed(unknown))}",
            f"choose among {', '.join(linear_layers(config))}",
            "adapter.target_modules",
        )
    from peft import inject_adapter_in_model

    inject_adapter_in_model(lora_config(model, config), model, NAME)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_factor(name) or name.startswith(model.fresh_parts))


def lora_config(model: NeoBERTPreTrainedModel, config: RunConfig, **more: Any) -> Any:
    """Return the `peft.LoraConfig` of a run."""
    from peft import LoraConfig

    adapter = config.adapter
    return LoraConfig(
        task_type=PEFT_TASKS[type(model).__name__],
        base_model_name_or_path=config.model.pretrained_checkpoint,
        r=adapter.r,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=list(target_modules(config)),
        **more,
    )


def saved_config(model: NeoBERTPreTrainedModel, config: RunConfig) -> Any:
    """Return the `peft.LoraConfig` that reads a saved adapter: it brings its head."""
    head = [name.removesuffix(".") for name in model.fresh_parts]
    return lora_config(model, config, modules_to_save=head, inference_mode=True)


def is_factor(name: str) -> bool:
    """Return whether the parameter of this name belongs to the adapter."""
    return name.endswith((FACTOR_A, FACTOR_B))


def merged(weights: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return the weights with the adapters merged, W + scale B A, in fp32."""
    found = {name: each for name, each in weights.items() if not is_factor(name)}
    for name in [name for name in found if name.endswith(BASE)]:
        layer = name.removesuffix(BASE)
        change = weights[layer + FACTOR_B].float() @ weights[layer + FACTOR_A].float()
        found[f"{layer}.weight"] = found.pop(name) + scale * change
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTask(Task):
    """A task whose checkpoints hold an adapter.

    Attributes:
        scale: factor of the product B A: alpha / r.
        settings: the `peft.LoraConfig`.
    """

    model: NeoBERTPreTrainedModel
    scale: float
    settings: Any

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the merged model, the adapter and the frozen weights."""
        write_hf_folder(self.model, self.tokenizer_files, folder, merged(weights, self.scale))
        trained = {name: each for name, each in weights.items() if self._is_trained(name)}
        (folder / FOLDER).mkdir(exist_ok=True)
        self.settings.save_pretrained(folder / FOLDER)
        _write(
            folder / FOLDER / ADAPTER_FILE, {PREFIX + exported(name): each for name, each in trained.items()}
        )
        _write(folder / STATE_DIR / FROZEN_FILE, {n: each for n, each in weights.items() if n not in trained})

    def load(self, path: Path) -> None:
        """Read frozen weights, adapter and head of the checkpoint whose model.safetensors is `path`.

        Raises `ProjectError` EXP004 if one is missing or damaged, EXP005 if they do not fit.
        """
        folder = path.parent
        own = own_weights(self.model)
        state = read_weights(folder / STATE_DIR / FROZEN_FILE)
        adapter = read_weights(folder / FOLDER / ADAPTER_FILE)
        names = {PREFIX + exported(name): name for name in own if self._is_trained(name)}
        state |= {names.get(name, name): each for name, each in adapter.items()}
        wrong = {*own} ^ {*state} | {n for n in own if n in state and own[n].shape != state[n].shape}
        if wrong:
            raise ProjectError(
                "EXP005",
                f"the adapter does not fit the model: {printable(listed(sorted(wrong)))}",
                "restore the section adapter of the run that saved the checkpoint",
                str(folder),
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(part_like(state[name], tensor))

    def _is_trained(self, name: str) -> bool:
        return is_factor(name) or name.startswith(self.model.fresh_parts)


def exported(name: str) -> str:
    """Return the name of a weight in peft's files, which omit the adapter's name."""
    return name.replace(f".{NAME}.weight", ".weight") if is_factor(name) else name


def _write(file: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: each.detach().contiguous() for name, each in tensors.items()}, file, METADATA)
