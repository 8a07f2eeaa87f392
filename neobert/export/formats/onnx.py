"""A folder for ONNX Runtime: onnx/model.onnx, config, tokenizer and, for an embedding model, pooling.

The layout is the one that transformers.js and text-embeddings-inference read. The graph is the encoder; for a
classifier, it is the whole model.
"""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neobert.export.folder import MODELING_FILES, portable_config
from neobert.export.formats.sentence_transformers import write_json, write_pooling
from neobert.export.formats.writer import ROWS, Writer
from neobert.export.reference import Arrays, Reference
from neobert.export.source import Source
from neobert.model.configuration_neobert import AUTO_MAP

OPSET = 18
CONFIG_FILES = ("configuration_neobert.py", "kernel_table.py")
INPUTS = ("input_ids", "attention_mask")


class Graph(nn.Module):
    """Wrapper with positional inputs and the one output that is exported."""

    def __init__(self, model: nn.Module, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids and attention_mask [B, S] -> last_hidden_state [B, S, D] or logits [B, labels]."""
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)
        found: Tensor = getattr(outputs, self.output)
        return found


def output_of(source: Source) -> str:
    """Return the name of the graph's output."""
    return "logits" if source.is_classifier else "last_hidden_state"


def write(source: Source, folder: Path) -> dict[str, Any]:
    """Export the graph with dynamic batch and length."""
    output = output_of(source)
    graph = Graph(source.model if source.is_classifier else source.encoder, output).eval()
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
    for name, content in source.tokenizer_files.items():
        (folder / name).write_bytes(content)
    if source.is_neobert and not source.is_classifier:
        write_pooling(source, folder)
    return {
        "opset": OPSET,
        "inputs": {name: ["batch", "sequence"] for name in INPUTS},
        "output": output,
        "note": "the graph accepts rows beyond max_position_embeddings, which the model refuses",
    }


def write_config(source: Source, folder: Path) -> None:
    """Write config.json and, for NeoBERT, the code that AutoConfig needs; that of the models is left out."""
    config = json.loads(portable_config(source.model))
    if source.is_neobert:
        config["auto_map"] = {"AutoConfig": AUTO_MAP["AutoConfig"]}
        for name in CONFIG_FILES:
            shutil.copyfile(MODELING_FILES[name], folder / name)
    write_json(folder / "config.json", config)


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Hide the exporter's warnings about its own code and about packages that the graph does not use."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def expected(source: Source, reference: Reference) -> Arrays:
    """Return the expected output of the graph for the batch, and for each text alone."""
    name = output_of(source)
    rows = {each: reference.outputs[each] for each in (*ROWS, name)}
    return rows | {f"{name}, one text at a time": reference.outputs[name]}


WRITER = Writer(write, "onnx_folder", expected)
