"""Weights of transformers folders by their names in a model, read where they are used. Imports torch."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from neobert.export.weights import match_prefix, read_weights, unique_weights
from neobert.families.hf.parts import model_architecture


def map_weight_files(model: PreTrainedModel, folder: Path) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Map the files of a folder to the weights of a model, by name, for a model that will be sharded.

    Names of older releases of transformers are not converted. Returns the weights, the names of weights that
    the folder lacks or has in another shape, and the names that the model lacks.
    """
    architecture, own = model_architecture(model), unique_weights(model)
    named = {architecture.name_in_model(name): each for name, each in read_weights(folder).items()}
    in_files, of_head = match_prefix(named, model)
    found: dict[str, Tensor] = {}
    first = {id(each): name for name, each in own.items()}
    every = model.state_dict(keep_vars=True)
    for name, each in every.items():  # a tied weight has several names
        if name in in_files and in_files[name].shape == each.shape:
            found.setdefault(first[id(each)], in_files[name])
    unused = (in_files.keys() - every.keys()) | of_head
    return found, sorted(own.keys() - found.keys()), sorted(unused)
