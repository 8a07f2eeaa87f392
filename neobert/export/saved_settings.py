"""Checks of a model folder's config.json against the headers of its weights, before a model is built.

The file is untrusted: a wrong value could cause an error inside a library, a model of any size, or wrong
outputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from neobert.errors import ProjectError
from neobert.families.hf.architectures.table import ARCHITECTURES
from neobert.families.hf.settings import POSITIONS, Settings
from neobert.runfiles.model_folder import read_json
from neobert.runfiles.run_dir import CONFIG
from neobert.runfiles.weights_header import Shape, tensor_shapes
from neobert.schema_fields import LONGEST_SEQUENCE

BLOCK = re.compile(r"(?:^|\.)(?:layer|layers|transformer_encoder|h)\.(\d+)\.")
EMBEDDING = re.compile(
    r"(?:^(?:model\.)?encoder|word_embeddings|tok_embeddings|\bwte|^model\.embeddings)\.weight$"
)
POSITION = ("position_embeddings.weight", "positional_embedding.weight", "wpe.weight")
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
NUMBERS = ("rope_theta", "norm_eps", "embedding_multiplier")
FLAGS = ("rope", "rms_norm", "tie_word_embeddings")


def refuse_wrong_settings(folder: Path) -> None:
    """Raise `ProjectError` for a value of the wrong type, or for sizes that differ from the weights'.

    The code is MOD006 for a wrong type, EXP005 for a wrong size, or EXP004 for unreadable weights.
    """
    file = folder / CONFIG
    settings = Settings(read_json(file), str(file), key=CONFIG)
    model_type = settings.text("model_type", "")
    names = ARCHITECTURES[model_type].names if model_type in ARCHITECTURES else {}
    _refuse_wrong_types(settings, names.get(POSITIONS, POSITIONS))
    shapes = tensor_shapes(folder)
    embedded = "embedding_size" if "embedding_size" in settings.values else "hidden_size"
    for common_name, size in _sizes_from_shapes(shapes, embedded):
        name = names.get(common_name, common_name)
        if (found := settings.size(name, size)) != size:
            message = f"{name} is {found:,}, but the shapes of the weights require {size:,}"
            raise ProjectError("EXP005", message, f"set {name} to {size} in {CONFIG}", str(file))
    largest = max((size for shape in shapes.values() for size in shape), default=0)
    # Gate and up are one matrix in some layouts, and the gate has two thirds of the width in others.
    name = names.get("intermediate_size", "intermediate_size")
    if (width := settings.size(name, 1)) > 2 * largest:
        message = f"{name} is {width:,}, but the largest weight has {largest:,} rows"
        raise ProjectError("EXP005", message, f"correct {name} in {CONFIG}", str(file))


def _refuse_wrong_types(settings: Settings, positions: str) -> None:
    """Raise `ProjectError` MOD006 for the first value of a wrong type; a missing one has a default."""
    for names, check, expected in (
        (SIZES, settings.size, "a positive integer"),
        (NUMBERS, settings.number, "a number of at least 0"),
        (FLAGS, settings.flag, "true or false"),
    ):
        for name in (name for name in names if name in settings.values):
            if settings.values[name] is None:
                raise settings.invalid_value_error(name, expected)
            check(name, True)  # the default of a missing value, which is not used
    if settings.size(positions, 1) > LONGEST_SEQUENCE:
        raise settings.invalid_value_error(positions, f"a positive integer of at most {LONGEST_SEQUENCE}")


def _sizes_from_shapes(shapes: Mapping[str, Shape], width: str) -> Iterator[tuple[str, int]]:
    """Yield the settings that the weights show, with their values; `width` is the embedding width."""
    if blocks := {match[1] for name in shapes if (match := BLOCK.search(name))}:
        yield "num_hidden_layers", len(blocks)
    for name, shape in shapes.items():
        if EMBEDDING.search(name) and len(shape) == 2:
            yield from zip(("vocab_size", width), shape, strict=True)
        elif name.endswith(POSITION) and len(shape) == 2:
            yield POSITIONS, shape[0]
