"""Comparison of a transformers checkpoint with the model that is to start from it. Imports no torch.

The shapes of the matrices of each block show another architecture, depth, width or vocabulary; the trainer
compares every tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from neobert.config.schema import HfModelConfig, RunConfig
from neobert.errors import ProjectError
from neobert.families.hf.architecture import CAUSAL, Architecture, head_parts
from neobert.families.hf.heads import heads_by_auto_class
from neobert.families.hf.settings import Settings
from neobert.families.hf.spec import read_model_settings, requested_rows
from neobert.families.shape import ModelShape
from neobert.families.table import model_shape
from neobert.plurals import counted, listed
from neobert.printable import printable
from neobert.runfiles.model_folder import folder_of_weights, read_json
from neobert.runfiles.run_dir import CONFIG
from neobert.runfiles.weights_header import Shape, are_equal_tensors, tensor_shapes
from neobert.tasks.specs import spec_of

CODE = "EXP005"
TIED = "tie_word_embeddings"
NO_HEAD = "set model.pretrained_checkpoint to a checkpoint with a {}-language-model head"


def expected_weights(
    shape: ModelShape, architecture: Architecture, settings: Settings
) -> Iterator[tuple[str, Shape]]:
    """Yield names, without the prefix of the encoder, and shapes of some weights of an encoder."""
    width = settings.size("embedding_size", shape.hidden_size)
    yield f"{architecture.embedding}.weight", (shape.vocab_size, width)
    if architecture.positions:
        yield f"{architecture.positions}.weight", (shape.max_positions + shape.first_position, width)
    for number in range(shape.num_layers):
        for name, each in shape.linear_layers.items():
            yield f"{architecture.blocks}.{number}.{name}.weight", (each.outputs, each.inputs)


def refuse_other_weights(config: RunConfig, path: Path) -> None:
    """Raise `ProjectError` EXP005 if transformers weights have other shapes in their headers than the model.

    Does nothing for another model family. Raises EXP004 for headers that cannot be read.
    """
    if not isinstance(config.model, HfModelConfig):
        return
    settings, architecture = read_model_settings(config.model)
    shape = model_shape(config, requested_rows(config.model) or 1)
    folder = folder_of_weights(path)
    in_files = tensor_shapes(folder)
    named = {architecture.name_in_model(name): size for name, size in in_files.items()}
    found = {name.removeprefix(architecture.prefix): size for name, size in named.items()}
    wanted = dict(expected_weights(shape, architecture, settings))
    absent = [name for name in wanted if name not in found]
    other = [name for name, size in wanted.items() if found.get(name, size) != size]
    # A decoder that is the embedding needs no weights, but what runs before it does.
    task = spec_of(config)
    needs_head = task.has_word_head and shape.parameters.decoder > 0
    head = head_parts(architecture.prefix, architecture.heads[task.auto_class])[0] if needs_head else ""
    # Without these keys, sizes are those of the checkpoint. Null, because a profile may have set them.
    keys = [f"model.{name}" for name in settings.section_sizes]
    keys += ["model.config"] if config.model.config else []
    hint = f"set {listed(keys, len(keys))} to null" if keys else f"correct config.json of {folder}"
    if len(absent) == len(wanted):
        hint = f"set model.pretrained_checkpoint to the weights of a {shape.architecture}"
    if absent:
        message = f"the checkpoint lacks weights of the model: {listed(absent)}"
    elif other:
        sizes = f"{list(found[other[0]])}, but the model has {list(wanted[other[0]])}"
        message = f"{printable(other[0])} in the checkpoint has the shape {sizes}"
    elif not any(name.startswith(head) for name in found):
        message = f"the checkpoint lacks weights of the model: {head}.*"
        hint = NO_HEAD.format("causal" if shape.attention.is_causal else "masked")
        if shape.attention.is_causal:
            hint = f"set {TIED} to true in config.json of {folder}, or {hint.removeprefix('set ')}"
        if architecture.without_masked_head:
            hint = f"{hint} ({architecture.without_masked_head})"
        if task.mix_key:
            hint = f"set {task.mix_key} to 0, or {hint}"
    elif names := _separate_tables(shape, architecture, in_files, folder):
        message = (
            f"the checkpoint has {listed(names)} with different values, but {TIED} makes them one weight"
        )
        hint = f"set {TIED} to false in config.json of {folder}"
    else:
        return
    raise ProjectError(CODE, message, hint, "model.pretrained_checkpoint")


def _separate_tables(
    shape: ModelShape, architecture: Architecture, in_files: Iterable[str], folder: Path
) -> tuple[str, ...]:
    """Return the names of embedding and decoder if the model has one weight for both and the files two."""
    if shape.parameters.decoder or not shape.attention.is_causal:
        return ()
    tables = {f"{architecture.prefix}{architecture.embedding}.weight", f"{architecture.embedding}.weight"}
    tables.add(f"{architecture.heads[CAUSAL].linear}.weight")
    names = tuple(name for name in in_files if architecture.name_in_model(name) in tables)
    return names if len(names) == 2 and not are_equal_tensors(folder, *names) else ()


def describe_loading(config: RunConfig, path: Path) -> str:
    """Describe the weights that a run loads from a transformers checkpoint, by the names in its headers.

    Counts weights, and names parts of the head that are new and weights that the model lacks. Empty for other
    models. Raises `ProjectError` EXP004 for a header that cannot be read.
    """
    if not isinstance(config.model, HfModelConfig):
        return ""
    head = _task_head(config)
    in_files, (_, architecture) = tensor_shapes(folder_of_weights(path)), read_model_settings(config.model)
    named = {architecture.name_in_model(name): size for name, size in in_files.items()}
    here = _rename_to_model(named, head.prefix)
    unused = sorted(name for name in here if not name.startswith((head.prefix, *head.starts)))
    new = _new_parts(config, head, here)
    text = f"{counted(len(here) - len(unused), 'tensor')} loaded"
    if new and not spec_of(config).has_word_head:
        text += f"; new, because the checkpoint lacks them: {listed(new)}"
    if unused:
        text += f"; not used: {len(unused):,} ({printable(listed(unused))})"
    return text


def random_head(config: RunConfig, path: Path) -> tuple[str, ...]:
    """Return the parts of the head that stay random although the weights have a head of the run's task.

    Empty if the weights have another head or none, as a pretrained encoder has. Raises `ProjectError`
    for a file that cannot be read.
    """
    spec, folder = spec_of(config), folder_of_weights(path)
    if spec.has_word_head or not spec.has_head:
        return ()
    named = read_json(folder / CONFIG, missing_ok=True).get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else ""
    if not architecture.endswith(spec.auto_class.removeprefix("AutoModel")):
        return ()
    head = _task_head(config)
    return _new_parts(config, head, _rename_to_model(tensor_shapes(folder), head.prefix))


class _HeadNames(NamedTuple):
    """Names of a head: the prefix of the encoder's weights, the last layer, and the modules with weights."""

    prefix: str
    linear: str
    parts: tuple[str, ...]

    @property
    def starts(self) -> tuple[str, ...]:
        return tuple(f"{part}." for part in self.parts)


def _task_head(config: RunConfig) -> _HeadNames:
    """Return the head of the run's task; without parts if the architecture has none."""
    if not isinstance(config.model, HfModelConfig):
        return _HeadNames("model.", "classifier", ())
    settings, architecture = read_model_settings(config.model)
    head = heads_by_auto_class(settings.text("model_type", "")).get(spec_of(config).auto_class)
    if head is None:
        return _HeadNames(architecture.prefix, "", ())
    return _HeadNames(architecture.prefix, head.linear, head_parts(architecture.prefix, head))


def _rename_to_model(shapes: Mapping[str, Shape], prefix: str) -> Mapping[str, Shape]:
    """Return the weights by their names in the model; saved without a head, they have no prefix."""
    is_whole = any(name.startswith(prefix) for name in shapes)
    return shapes if is_whole else {prefix + name: size for name, size in shapes.items()}


def _new_parts(config: RunConfig, head: _HeadNames, shapes: Mapping[str, Shape]) -> tuple[str, ...]:
    """Return the parts of the head that the weights lack, or have for another number of labels."""
    absent = [part for part in head.parts if not any(name.startswith(f"{part}.") for name in shapes)]
    spec = spec_of(config)
    width = spec.head(config, model_shape(config, 1)).width
    rows = shapes.get(f"{head.linear}.weight", (width,))[0]
    if not spec.has_word_head and rows != width:
        absent.append(f"{head.linear} (of {rows:,} outputs, not {width:,})")
    return tuple(absent)
