"""Interface of export formats (`Writer`), and functions that several formats share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.export.reference import Arrays, Reference
from neobert.export.source import Source

ROWS = ("input_ids", "attention_mask")


def no_refusal(_: Source) -> str:
    """Accept every model: the default `Writer.refusal`, which returns an empty reason."""
    return ""


def select_outputs(*names: str) -> Callable[[Source, Reference], Arrays]:
    """Return a function for `Writer.expected_outputs` that selects these outputs if the model has them."""
    return lambda _, reference: {name: reference.outputs[name] for name in names if name in reference.outputs}


def describe_setting_differences(source: Source, **more_settings: object) -> str:
    """Return the settings that differ from the published NeoBERT's, as text such as "rope: False".

    Empty if none differs. `more_settings` are further settings to compare, with their published values.
    """
    published = {"hidden_act": "swiglu", "rms_norm": True, "rope": True} | more_settings
    own = {key: getattr(source.model.config, key) for key in published}
    return ", ".join(f"{key}: {value}" for key, value in own.items() if value != published[key])


@dataclass(frozen=True, slots=True)
class Writer:
    """Functions that write and verify an export format.

    Attributes:
        write: writes the files to an empty folder; returns further entries for conversion.json.
        reader: module in `neobert/export/readers` that loads the folder and computes outputs.
        expected_outputs: returns the reference outputs that the reader must reproduce.
        refusal: returns the reason why the format does not support a model; empty if it does.
    """

    write: Callable[[Source, Path], dict[str, Any]]
    reader: str
    expected_outputs: Callable[[Source, Reference], Arrays]
    refusal: Callable[[Source], str] = no_refusal
