"""The interface of an export format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.export.reference import Arrays, Reference
from neobert.export.source import Source

ROWS = ("input_ids", "attention_mask")


def never(_: Source) -> str:
    """Return an empty reason: the format supports every model."""
    return ""


def outputs(*names: str) -> Callable[[Source, Reference], Arrays]:
    """Return a function that selects the named outputs of a reference, as far as the model has them."""
    return lambda _, reference: {name: reference.outputs[name] for name in names if name in reference.outputs}


def departures(source: Source, **others: object) -> str:
    """List the settings that differ from the published architecture, which other programs assume."""
    published = {"hidden_act": "swiglu", "rms_norm": True, "rope": True} | others
    own = {key: getattr(source.model.config, key) for key in published}
    return ", ".join(f"{key}: {value}" for key, value in own.items() if value != published[key])


@dataclass(frozen=True, slots=True)
class Writer:
    """A format of exported folders.

    Attributes:
        write: fills an empty folder; returns what `conversion.json` states besides the checks.
        reader: program in `neobert/export/readers` that reads the folder with the consumer's library.
        expected: outputs of the reference that the reader must reproduce.
        refusal: returns why the format does not support a model; empty if it does.
    """

    write: Callable[[Source, Path], dict[str, Any]]
    reader: str
    expected: Callable[[Source, Reference], Arrays]
    refusal: Callable[[Source], str] = never
