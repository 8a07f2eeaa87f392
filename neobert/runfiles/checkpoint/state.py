"""Reading of a checkpoint's state.json (step, cursor, counters, digests) and config, with type checks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from neobert.printable import printable
from neobert.runfiles.checkpoint.refusal import unusable_checkpoint_error
from neobert.runfiles.json_values import LARGEST
from neobert.runfiles.typed_json import parse_as
from neobert.schema_fields import ge, lt

STATE_DIR = "trainer_state"
STATE = "state.json"
CONFIG = "resolved.json"
DATA_FINGERPRINT, TOKENIZER_DIGEST = "data fingerprint", "tokenizer digest"
"""Names under `identity` in state.json of the text and the tokenizer of a run."""

Count = Annotated[int, ge(0), lt(LARGEST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLoss:
    """Summed loss since the last line of metrics, and the number of its targets."""

    num_targets: Count
    loss_sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSource:
    """Provenance of a continued checkpoint, see `neobert.runfiles.continuation`."""

    checkpoint: str
    step: Count
    tokens_total: Count
    files_sha256: str
    dataset: dict[str, Any]
    tokenizer: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCursor:
    """Position in the data, see `neobert.data.batches.windows.Cursor`."""

    epoch: Count
    window: Count
    index: Count
    stream: dict[str, Any] | None
    packer: Count
    corpus_tokens: list[Count] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """Content of state.json. Version 0.2.0 wrote no `plugins`."""

    schema_version: Count
    step: Count
    cursor: SavedCursor
    tokens_total: Count
    loss_window: WindowLoss
    mean_loss: float | None
    row: dict[str, Any] | None
    trained_s: float
    learning_rate: float
    identity: dict[str, str]
    source: CheckpointSource | None
    world_size: Count
    num_threads: Count
    versions: dict[str, str]
    plugins: Any = None


def read_state(folder: Path, step: int) -> dict[str, Any]:
    """Read state.json of a verified checkpoint; `step` is the step in its manifest.

    Raises `ProjectError` CKP007 if the step differs or a value has the wrong type.
    """
    try:
        state = asdict(parse_as(SavedState, _read_object(folder, STATE)))
    except ValueError as error:
        raise unusable_checkpoint_error(folder, f"{STATE_DIR}/{STATE}: {printable(str(error))}") from None
    if state["step"] != step:
        raise unusable_checkpoint_error(
            folder, f"{STATE_DIR}/{STATE} is of step {state['step']:,}, not {step:,}"
        )
    return state


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config of a checkpoint. Raises `ProjectError` CKP007 if it is missing or not a JSON object."""
    return _read_object(folder, CONFIG)


def _read_object(folder: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads((folder / STATE_DIR / name).read_text(encoding="utf-8"))
    except PermissionError:
        raise
    except (OSError, ValueError, RecursionError):
        raise unusable_checkpoint_error(folder, f"{STATE_DIR}/{name} cannot be read as JSON") from None
    if not isinstance(content, dict):
        raise unusable_checkpoint_error(folder, f"{STATE_DIR}/{name} is not a JSON object")
    return content
