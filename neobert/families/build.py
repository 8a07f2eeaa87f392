"""Construction of a run's model with its objective. Imports torch.

`Family.module` names a module with a function `build_masked_lm` of the same signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from transformers import PreTrainedModel

from neobert.config.schema import RunConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.families.table import family_of
from neobert.objectives import Objective
from neobert.parallel import World


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A model with random weights, and the objective that trains it.

    Attributes:
        model: module whose weights checkpoints contain, on the CPU, in fp32.
        objective: masked-language-model loss over the model.
        attention: name of the attention kernel, as `Objective.attention_ran` reports it.
        load: loads the initial weights of a fresh run in place. Raises `ProjectError` if they do not fit.
        overlaps_exchange: ranks may exchange gradients during the backward pass.
        identity: digests of inputs of the model other than the config; they must be equal on resume.
    """

    model: PreTrainedModel
    objective: Objective
    attention: str
    load: Callable[[Path], None]
    overlaps_exchange: bool = True
    identity: Mapping[str, str] = field(default_factory=dict)


def build_masked_lm(
    config: RunConfig, tokenizer: TokenizerBundle, vocab_size: int, world: World
) -> BuiltModel:
    """Build the model that the config describes, with `vocab_size` rows in its embedding.

    Raises `ProjectError` for kernels that cannot run here, and for settings that the family does not support.
    """
    family = family_of(config)
    built: BuiltModel = import_module(family.module).build_masked_lm(config, tokenizer, vocab_size, world)
    return built
