"""Reading of a checkpoint's state.json (step, cursor, counters, digests) and config, with type checks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from neobert.runfiles.checkpoint.refusal import broken
from neobert.runfiles.json_values import is_count, is_number, is_texts

STATE_DIR = "trainer_state"
STATE = "state.json"
CONFIG = "resolved.json"
DATA_FINGERPRINT, TOKENIZER_DIGEST = "data fingerprint", "tokenizer digest"
"""Names under `identity` in state.json of the text and the tokenizer of a run."""

IsKind = Callable[[Any], bool]


def read_state(folder: Path, step: int) -> dict[str, Any]:
    """Read state.json of a verified checkpoint; `step` is the step in its manifest.

    Raises `ProjectError` CKP007 if the step differs or a value has the wrong type.
    """
    state = _read_object(folder, STATE)
    wrong = [key for key, is_kind in STATE_KINDS.items() if not is_kind(state.get(key))]
    if wrong:
        reason = f"{STATE_DIR}/{STATE} has no valid {', '.join(wrong)}"
        raise broken(folder, reason)
    if state["step"] != step:
        raise broken(folder, f"{STATE_DIR}/{STATE} is of step {state['step']:,}, not {step:,}")
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
        raise broken(folder, f"{STATE_DIR}/{name} cannot be read as JSON") from None
    if not isinstance(content, dict):
        raise broken(folder, f"{STATE_DIR}/{name} is not a JSON object")
    return content


def _is_number_or_none(value: Any) -> bool:
    return value is None or is_number(value)


def _is_object_or_none(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _is_loss_window(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"num_targets", "loss_sum"}
        and is_count(value["num_targets"])
        and is_number(value["loss_sum"])
    )


def _is_source_or_none(value: Any) -> bool:
    """Return whether a value is None or the provenance of a continued checkpoint."""
    return value is None or (
        isinstance(value, dict)
        and all(is_count(value.get(name)) for name in ("step", "tokens_total"))
        and all(isinstance(value.get(name), dict) for name in ("dataset", "tokenizer"))
    )


def _is_cursor(value: Any) -> bool:
    """Return whether a value is a data cursor. Counts added by later versions may be missing."""
    if not isinstance(value, dict) or not {"epoch", "window", "index", "stream"} <= value.keys():
        return False
    counts = [count for key, count in value.items() if key not in ("stream", "corpus_tokens")]
    corpus_tokens = value.get("corpus_tokens", [])
    is_whole = _is_object_or_none(value["stream"]) and isinstance(corpus_tokens, list)
    return is_whole and all(map(is_count, [*counts, *corpus_tokens]))


STATE_KINDS: Mapping[str, IsKind] = {
    "step": is_count,
    "cursor": _is_cursor,
    "tokens_total": is_count,
    "loss_window": _is_loss_window,
    "mean_loss": _is_number_or_none,
    "row": _is_object_or_none,
    "trained_s": is_number,
    "learning_rate": is_number,
    "identity": is_texts,
    "world_size": is_count,
    "num_threads": is_count,
    "versions": is_texts,
    "source": _is_source_or_none,
}
