"""Table of export formats: names, and the packages that each needs. Imports only the standard library."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import NamedTuple

CONVERSION = "conversion.json"
"""Record in the folder of each format, which is a finished and verified export."""


class ExportFormat(NamedTuple):
    """Export format: a folder that another library reads.

    Attributes:
        module: module of `neobert.export.formats` that writes the folder.
        content: description of the folder, for help and docs.
        packages: import names of the additional packages that export and verification need.
        requirements: pip requirements of these packages, as in the extra of the same name.
        has_card: whether the folder has a model card (README.md).
    """

    name: str
    module: str
    content: str
    packages: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    has_card: bool = False

    @property
    def install_command(self) -> str:
        """The pip command that installs the packages of this format."""
        return " ".join(["pip install", *(f"'{each}'" for each in self.requirements)])

    def missing_packages(self) -> list[str]:
        """Return the import names of packages that are not installed, without importing any."""
        return [package for package in self.packages if find_spec(package) is None]


_ALL = (
    ExportFormat("hf", "hf", "weights, modeling code and tokenizer for transformers", has_card=True),
    ExportFormat(
        "sentence-transformers",
        "sentence_transformers",
        "the encoder with its pooling, for sentence-transformers",
        ("sentence_transformers",),
        ("sentence-transformers>=6",),
        has_card=True,
    ),
    ExportFormat(
        "onnx",
        "onnx",
        "onnx/model.onnx, for ONNX Runtime",
        ("onnx", "onnxscript", "onnxruntime"),
        ("onnx>=1.20", "onnxscript>=0.6", "onnxruntime>=1.23"),
        has_card=True,
    ),
    ExportFormat(
        "gguf-ready",
        "gguf",
        "model.gguf, for llama.cpp, and the folder that its converter reads",
        ("gguf", "xllamacpp"),
        ("gguf>=0.17", "xllamacpp>=2026.10"),
    ),
    ExportFormat("fork", "fork", "weights in the layout of the published model's best-known fork"),
)
FORMATS = {each.name: each for each in _ALL}


def unknown_formats(names: Iterable[str]) -> list[str]:
    """Return the names that are not in `FORMATS`."""
    return [name for name in names if name not in FORMATS]
