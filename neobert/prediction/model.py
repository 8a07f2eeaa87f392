"""Models with a head for texts or words, from a folder, over packed rows.

Shapes: T tokens of a packed row, K texts in it, L labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neobert.encoding.model import (
    autocast_on,
    convert_config_errors,
    packed_backbone,
    run_config,
    run_length_multiple,
)
from neobert.encoding.packed_rows import PackedRow
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.export.saved_settings import refuse_wrong_settings
from neobert.export.weights import load_weights
from neobert.families.backbone import Backbone
from neobert.families.hf.build import WHOLE_MODEL, read_model, refuse_missing_weights
from neobert.families.neobert.build import MODELS
from neobert.families.neobert.build import backbone_from_model as neobert_backbone
from neobert.model import NeoBERTConfig
from neobert.objectives.labelled import LabelledObjective
from neobert.objectives.step_kernels import resolve_step_kernels
from neobert.plurals import counted, listed
from neobert.printable import printable
from neobert.runfiles.model_folder import CODE, read_json

SINGLE, SCORE = "single_label_classification", "regression"


@dataclass(frozen=True, slots=True)
class HeadModel:
    """Model with a head for texts or words, without gradients.

    Attributes:
        kernels: name of the attention kernel, for reports.
    """

    objective: LabelledObjective
    device: torch.device
    dtype: torch.dtype
    kernels: str

    @property
    def settings(self) -> Any:
        """The configuration of the transformers or NeoBERT model."""
        return self.objective.model.config

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the L outputs, in their order."""
        names = self.settings.id2label
        return tuple(str(names[number]) for number in range(self.settings.num_labels))

    @property
    def is_regression(self) -> bool:
        """True for a regression model, whose only output is a score."""
        problem = self.settings.problem_type or (SCORE if self.settings.num_labels == 1 else SINGLE)
        return bool(problem == SCORE)

    @property
    def length_multiple(self) -> int:
        """The length of each packed row must be a multiple of this number of tokens."""
        return run_length_multiple(self.device)

    @property
    def max_length(self) -> int:
        """Maximum length of a sequence in tokens."""
        return self.objective.backbone.max_length

    @torch.no_grad()
    def logits(self, packed: PackedRow, seconds: Sequence[int] | None = None) -> Tensor:
        """Return the logits in fp32: [K, L] of texts, filler not included, or [T, L] of tokens.

        `seconds` [K] are the positions where second texts begin, whose tokens have type 1 if the model has
        types; None: all tokens have type 0.
        """
        inputs = packed.inputs | {"attention_mask": None}
        if seconds is not None:
            inputs["token_type_ids"] = packed.token_types(seconds)
        with autocast_on(self.dtype, self.device):
            return self.objective.logits(inputs)


def load_head_model(folder: Path, auto_class: str, device: torch.device, dtype: torch.dtype) -> HeadModel:
    """Load a NeoBERT or transformers model with a head, without running code from the folder.

    Raises `ProjectError` if weights are missing, if a text may have several labels, or if names or numbers of
    classes are repeated.
    """
    settings = read_json(folder / "config.json")
    refuse_wrong_settings(folder)
    _refuse_several_labels(settings, folder)
    _refuse_unusable_names(settings, folder)
    is_neobert = settings.get("model_type") == NeoBERTConfig.model_type
    backbone = (_load_neobert if is_neobert else _load_transformers)(folder, auto_class, device, dtype)
    objective = LabelledObjective(backbone).to(device).eval()
    return HeadModel(objective, device, dtype, f"attention {backbone.attention}")


def _refuse_several_labels(settings: Mapping[str, Any], folder: Path) -> None:
    problem = settings.get("problem_type")
    if problem not in (None, SINGLE, SCORE):
        message = f"problem_type {printable(str(problem))} is not supported (supported: {SINGLE}, {SCORE})"
        raise ProjectError(CODE, message, "use a pipeline of transformers", str(folder), EXIT_USAGE)


def _refuse_unusable_names(settings: Mapping[str, Any], folder: Path) -> None:
    names = settings.get("id2label")
    if not isinstance(names, dict):
        return
    counts = Counter(map(str, names.values()))
    name, number = counts.most_common(1)[0] if counts else ("", 0)
    message = hint = ""
    if number > 1:
        message = f"id2label has {counted(number, 'class', 'classes')} named {name!r}"
        hint = "give each class a name of its own"
    elif {*names} != {*map(str, range(len(names)))}:
        message = (
            f"id2label names the classes {printable(listed([*names], 5))}, expected 0 to {len(names) - 1}"
        )
        hint = "number the classes in id2label in the order of the model's outputs"
    if message:
        raise ProjectError(CODE, message, hint, str(folder / "config.json"), EXIT_USAGE)


def _load_neobert(folder: Path, auto_class: str, device: torch.device, dtype: torch.dtype) -> Backbone:
    with convert_config_errors(folder):
        settings = NeoBERTConfig.from_pretrained(folder, local_files_only=True)
        kernels = resolve_step_kernels(run_config(settings, dtype), device.type, dtype)
        settings.attn_backend = kernels.model_attention
        model = MODELS[auto_class](settings)
    load_weights(model, folder)
    return neobert_backbone(model, kernels)


def _load_transformers(folder: Path, auto_class: str, device: torch.device, dtype: torch.dtype) -> Backbone:
    model, absent, _ = read_model(auto_class, folder, WHOLE_MODEL)
    refuse_missing_weights(absent, folder, "pass a complete checkpoint")
    return packed_backbone(model, auto_class, folder, device, dtype)
