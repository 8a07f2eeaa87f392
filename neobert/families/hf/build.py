"""Construction of transformers encoders, and masked language modeling over padded rows. Imports torch.

Only classes of the installed transformers package are used.

Shapes: B rows, S row length, M targets, D hidden size, V vocabulary.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel

from neobert.config.schema import RunConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.errors import ProjectError
from neobert.families.build import BuiltModel
from neobert.families.hf.settings import CODE, read_settings, reason_of
from neobert.families.hf.spec import max_positions, section_of, unsupported
from neobert.families.table import longest_row
from neobert.objectives import Objective
from neobert.objectives.masked_lm import Score, gather_targets, summed_loss
from neobert.parallel import World
from neobert.plurals import listed
from neobert.printable import printable

log = logging.getLogger(__name__)

LEFT_OUT = ("auto_map", "architectures", "transformers_version", "dtype", "torch_dtype", "_name_or_path")
"""Keys of a config.json that name code to run, or describe the file and not the model."""


class Parts(NamedTuple):
    """Functions that return the blocks of an architecture, and its head (hidden states to logits)."""

    blocks: Callable[[Any], nn.ModuleList]
    head: Callable[[Any], Head]


PARTS = {
    "bert": Parts(lambda model: model.bert.encoder.layer, lambda model: model.cls),
    "modernbert": Parts(
        lambda model: model.model.layers,
        lambda model: lambda hidden: model.decoder(model.head(hidden)),
    ),
}


def build_masked_lm(
    config: RunConfig,
    tokenizer: TokenizerBundle,
    vocab_size: int,
    world: World,  # noqa: ARG001
) -> BuiltModel:
    """Build the encoder with its masked-language-model head, initialized by transformers.

    Raises `ProjectError` for keys that these models do not support.
    """
    for key, problem, hint in unsupported(config):
        raise ProjectError(CODE, f"model.type hf: {problem}", hint, key)
    settings = build_config(config, tokenizer, vocab_size)
    model = AutoModelForMaskedLM.from_config(settings, dtype=torch.float32).train()
    parts = PARTS[settings.model_type]
    blocks = parts.blocks(model)
    if config.trainer.gradient_checkpointing:
        _recompute(blocks, config.trainer.gradient_checkpointing_every_n)
    objective = TransformersMaskedLM(
        model,
        parts.head(model),
        list(blocks),
        masked_logits_only=config.trainer.masked_logits_only_loss,
        z_loss=config.trainer.z_loss,
    )
    log.info("model: transformers %s, attention: %s", settings.model_type, settings._attn_implementation)
    return BuiltModel(
        model=model,
        objective=objective,
        attention=str(settings._attn_implementation),
        load=partial(load_initial_weights, model),
        identity={"model configuration": digest_of(settings)},
    )


def build_config(config: RunConfig, tokenizer: TokenizerBundle, vocab_size: int) -> PretrainedConfig:
    """Return transformers' configuration: the settings of the run with the ids of its own tokenizer.

    Raises `ProjectError` MOD006 for a value that transformers rejects.
    """
    requested = read_settings(section_of(config))
    values = {name: value for name, value in requested.values.items() if name not in LEFT_OUT}
    ids = {
        "pad_token_id": tokenizer.pad_id,
        "cls_token_id": tokenizer.cls_id,
        "sep_token_id": tokenizer.sep_id,
        "bos_token_id": tokenizer.cls_id,
        "eos_token_id": tokenizer.sep_id,
    }
    values |= ids | {
        "vocab_size": vocab_size,
        "max_position_embeddings": max_positions(requested, longest_row(config)),
    }
    architecture = values.pop("model_type")
    try:
        settings: PretrainedConfig = AutoConfig.for_model(architecture, **values)
    except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
        message = f"transformers rejects the configuration: {printable(str(error))}"
        raise ProjectError(CODE, message, "correct model.config", "model.config") from error
    return settings


def digest_of(settings: PretrainedConfig) -> str:
    """Return the SHA-256 of a configuration, without keys that may differ between sessions of a run."""
    values = settings.to_dict()
    for name in ("transformers_version", "dtype", "_attn_implementation", "attn_implementation"):
        values.pop(name, None)
    return sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def _recompute(blocks: Iterable[Any], every_n: int) -> None:
    """Recompute blocks 0, n, 2n, ... in the backward pass."""
    for index, block in enumerate(blocks):
        # Attributes of transformers' layers: the method that sets them differs between its releases.
        block.gradient_checkpointing = index % every_n == 0
        block._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)


def load_initial_weights(model: PreTrainedModel, folder: Path) -> None:
    """Load every weight of the model from a transformers folder, in place. Reads safetensors only.

    Weights that this model lacks, such as a pooler, are ignored. Raises `ProjectError` EXP005.
    """
    hint = "set model.pretrained_checkpoint to a folder with config.json and model.safetensors"
    loaded, absent = read_masked_lm(folder, hint, config=model.config)
    other = "set model.config to the checkpoint's config.json, or use another checkpoint"
    refuse_absent(absent, folder, other)
    state: dict[str, Tensor] = loaded.state_dict()
    model.load_state_dict(state)
    log.info("loaded %d tensors from %s", len(state), folder)


def read_masked_lm(
    folder: Path, hint: str, config: PretrainedConfig | None = None
) -> tuple[PreTrainedModel, list[str]]:
    """Load a model in fp32 from a transformers folder with safetensors. `config` None: its own config.json.

    Returns the model and the names of weights that the folder lacks or has in another shape; these are
    initialized randomly. Raises `ProjectError` EXP005 with the hint if the folder cannot be loaded.
    """
    try:
        model, report = AutoModelForMaskedLM.from_pretrained(
            folder,
            **({} if config is None else {"config": config}),
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # a setting that no class checks raises errors of every kind
        message = f"the weights cannot be loaded: {reason_of(error)}"
        raise ProjectError("EXP005", message, hint, str(folder)) from error
    return model, sorted({*report["missing_keys"], *map(str, report["mismatched_keys"])})


def refuse_absent(names: Sequence[str], folder: Path, hint: str) -> None:
    """Raise `ProjectError` EXP005 if there are names of weights that a checkpoint lacks."""
    if names:
        message = f"the checkpoint lacks weights of the model: {listed(names)}"
        raise ProjectError("EXP005", message, hint, str(folder))


Head = Callable[[Tensor], Tensor]


class TransformersMaskedLM(Objective):
    """Sum the cross-entropy over the targets, in fp32.

    With `masked_logits_only` the head runs on the M targets, else on every token: the loss is the same.
    The loss that transformers computes is the mean over the targets of one microbatch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        blocks: Sequence[nn.Module],
        *,
        masked_logits_only: bool,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__()
        self.z_loss = z_loss
        self.model = model
        self.masked_logits_only = masked_logits_only
        self.capacity = None
        self.eval_capacity = None
        self.attention_ran = {}
        self._head = head
        self._blocks = list(blocks)
        for number, block in enumerate(self._blocks):
            block.register_forward_pre_hook(self._note(number))

    def forward(self, num_targets: int, labels: Tensor, **inputs: Any) -> Tensor:
        """Return the summed loss of a microbatch of padded rows; `inputs` as from `RankData.inputs`."""
        return summed_loss(*self._scores(num_targets, labels, inputs), self.z_loss)

    @torch.no_grad()
    def evaluate(self, num_targets: int, labels: Tensor, **inputs: Any) -> Score:
        """Return the summed loss and the number of correct predictions. Arguments as for `forward`."""
        logits, labels = self._scores(num_targets, labels, inputs)
        return Score(summed_loss(logits, labels), (logits.argmax(-1) == labels).sum())

    def units(self) -> list[nn.Module]:
        """Return the modules that FSDP2 shards as units: the blocks.

        Embedding and head may share a matrix, so they belong to the root module.
        """
        return list(self._blocks)

    def _scores(self, num_targets: int, labels: Tensor, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return logits [M, V] and labels [M]; [B * S, ...] without `masked_logits_only`."""
        hidden = self.model.base_model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            position_ids=inputs["position_ids"],
        ).last_hidden_state.flatten(0, -2)
        labels = labels.flatten()
        if self.masked_logits_only:
            hidden, labels = gather_targets(hidden, labels, num_targets)
        return self._head(hidden), labels

    def _note(self, number: int) -> Callable[..., None]:
        def note(_block: nn.Module, _arguments: Any) -> None:
            if torch.is_grad_enabled():
                self.attention_ran[number] = str(self.model.config._attn_implementation)

        return note
