"""Writer of an ONNX folder: onnx/model.onnx, config, tokenizer, model card and an embedding model's files.

transformers.js and text-embeddings-inference read this layout. The graph is the encoder or, for a classifier,
the whole model.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neobert.export.card import graph_card
from neobert.export.embedding_files import write_json
from neobert.export.folder import portable_config
from neobert.export.formats.writer import ROWS, Writer
from neobert.export.modeling_code import CONFIGURATION, modeling_code
from neobert.export.reference import CHOICE_HEAD, SPAN_HEAD, Arrays, Reference
from neobert.export.source import Source
from neobert.model.configuration_neobert import AUTO_MAP

OPSET = 18
INPUTS = ("input_ids", "attention_mask")


class OnnxGraph(nn.Module):
    """Wrapper for export, with positional inputs and a single output of the model."""

    def __init__(self, model: nn.Module, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return last_hidden_state [B, S, D] or logits [B, labels] for token ids and mask [B, S]."""
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)
        found: Tensor = getattr(outputs, self.output)
        return found


def refusal(source: Source) -> str:
    """Return the reason why the graph does not support a model (inputs or outputs); empty if it does."""
    name = type(source.model).__name__
    if name.endswith((SPAN_HEAD, CHOICE_HEAD)):
        return f"{name} has inputs or outputs that the ONNX graph does not support: pass --to hf"
    return ""


def output_name(source: Source) -> str:
    """Return the name of the graph's output: "logits" for a classifier, else "last_hidden_state"."""
    return "logits" if source.is_classifier else "last_hidden_state"


def write(source: Source, folder: Path) -> dict[str, Any]:
    """Write the graph, with dynamic batch size and row length, and the other files of the folder.

    Returns entries for conversion.json.
    """
    output = output_name(source)
    graph = OnnxGraph(source.model if source.is_classifier else source.encoder, output).eval()
    ids = torch.zeros(2, 6, dtype=torch.long)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    (folder / "onnx").mkdir()
    with quiet_exporter():
        program = torch.onnx.export(
            graph,
            (ids, torch.ones_like(ids)),
            input_names=INPUTS,
            output_names=(output,),
            dynamic_shapes=(axes, axes),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    program.save(folder / "onnx" / "model.onnx")
    write_config(source, folder)
    card = graph_card(source.model, source.tokenizer, output)
    (folder / "README.md").write_text(card, encoding="utf-8")
    for name, content in source.tokenizer_files.items():
        (folder / name).write_bytes(content)
    if source.embedding is not None:
        source.embedding.write(folder)
    return {
        "opset": OPSET,
        "inputs": {name: ["batch", "sequence"] for name in INPUTS},
        "output": output,
        "note": "the graph accepts rows longer than max_position_embeddings, which the model rejects",
    }


def write_config(source: Source, folder: Path) -> None:
    """Write config.json and, for NeoBERT, the code that AutoConfig needs, but no modeling code."""
    config = json.loads(portable_config(source.model))
    if source.is_neobert:
        config["auto_map"] = {"AutoConfig": AUTO_MAP["AutoConfig"]}
        name = f"{CONFIGURATION}.py"
        (folder / name).write_text(modeling_code()[name], encoding="utf-8")
    write_json(folder / "config.json", config)


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Suppress warnings of torch.onnx inside the `with` block: they do not concern the exported graph."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def expected_outputs(source: Source, reference: Reference) -> Arrays:
    """Return the reference outputs that the graph must reproduce for the batch, and for each text alone."""
    name = output_name(source)
    rows = {each: reference.outputs[each] for each in (*ROWS, name)}
    return rows | {f"{name}, one text at a time": reference.outputs[name]}


WRITER = Writer(write, "onnx_folder", expected_outputs, refusal)
