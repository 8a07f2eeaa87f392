"""Comparison of a transformers checkpoint with the model that is to start from it. Imports no torch.

The shapes of a few matrices of each block show another architecture, depth, width or vocabulary; the trainer
compares every tensor. D hidden, F feed-forward width, V vocabulary, P positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from neobert.config.schema import HfModelConfig, RunConfig
from neobert.errors import ProjectError
from neobert.families.hf.spec import requested_rows
from neobert.families.shape import ModelShape
from neobert.families.table import shape_of
from neobert.plurals import listed
from neobert.printable import printable
from neobert.runfiles.model_folder import folder_of_weights
from neobert.runfiles.weights_header import Shape, tensor_shapes
from neobert.tasks.specs import spec_of

CODE = "EXP005"
HEADS = ("cls.", "head.")
"""First parts of the names of the masked-language-model heads."""


def bert_weights(shape: ModelShape) -> Iterator[tuple[str, Shape]]:
    """Yield names, without the prefix `bert.`, and shapes of some weights of a BERT."""
    hidden = shape.hidden_size
    yield "embeddings.word_embeddings.weight", (shape.vocab_size, hidden)
    yield "embeddings.position_embeddings.weight", (shape.max_positions, hidden)
    for number in range(shape.num_layers):
        yield f"encoder.layer.{number}.attention.self.query.weight", (hidden, hidden)
        yield f"encoder.layer.{number}.output.dense.weight", (hidden, shape.feed_forward_width)
    yield "cls.predictions.transform.dense.weight", (hidden, hidden)


def modernbert_weights(shape: ModelShape) -> Iterator[tuple[str, Shape]]:
    """Yield names, without the prefix `model.`, and shapes of some weights of a ModernBERT."""
    hidden = shape.hidden_size
    yield "embeddings.tok_embeddings.weight", (shape.vocab_size, hidden)
    for number in range(shape.num_layers):
        yield f"layers.{number}.attn.Wqkv.weight", (3 * hidden, hidden)
        yield f"layers.{number}.mlp.Wo.weight", (hidden, shape.feed_forward_width)
    yield "head.dense.weight", (hidden, hidden)


WEIGHTS: dict[str, tuple[str, Callable[[ModelShape], Iterator[tuple[str, Shape]]]]] = {
    "bert": ("bert.", bert_weights),
    "modernbert": ("model.", modernbert_weights),
}
"""For each architecture, the prefix of its encoder's names, and its weights; the trainer compares others."""


def refuse_other_weights(config: RunConfig, path: Path) -> None:
    """Raise `ProjectError` EXP005 or EXP004 if the headers of transformers weights do not fit the model."""
    if not isinstance(config.model, HfModelConfig):
        return
    shape = shape_of(config, requested_rows(config.model) or 1)
    if shape.architecture not in WEIGHTS:
        return
    prefix, expected = WEIGHTS[shape.architecture]
    folder = folder_of_weights(path)
    found = {name.removeprefix(prefix): size for name, size in tensor_shapes(folder).items()}
    wanted = dict(expected(shape))
    if not spec_of(config).reads_text:  # its head may be new, or there is none
        wanted = {name: size for name, size in wanted.items() if not name.startswith(HEADS)}
    absent = [name for name in wanted if name not in found]
    other = [name for name, size in wanted.items() if found.get(name, size) != size]
    if absent:
        message = f"the checkpoint lacks weights of the model: {listed(absent)}"
    elif other:
        sizes = f"{list(found[other[0]])}, but the model has {list(wanted[other[0]])}"
        message = f"{printable(other[0])} in the checkpoint has the shape {sizes}"
    else:
        return
    raise ProjectError(
        CODE, message, _hint(shape, folder, absent, len(wanted)), "model.pretrained_checkpoint"
    )


def _hint(shape: ModelShape, folder: Path, absent: list[str], num_wanted: int) -> str:
    """Return the hint for weights of another architecture, without a head, or of other sizes."""
    if len(absent) == num_wanted:
        return f"set model.pretrained_checkpoint to the weights of a {shape.architecture}"
    if absent and all(name.startswith(HEADS) for name in absent):
        return "set model.pretrained_checkpoint to a checkpoint with a masked-language-model head"
    return f"set model.config to {folder}, and remove the sizes from the section model"
