"""Checkpoint that the run would resume from, verified as the trainer verifies it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from launcher.probes.data import has_tokenizer, why_no_text
from launcher.probes.probe import Subject, request_reading_time
from launcher.rundir.records import read_json
from neobert.config import from_dict, to_dict
from neobert.config.corpora import is_on_hub, list_corpora
from neobert.config.removed_keys import without_removed
from neobert.config.schedules import build_schedule
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.plugins.changes import plugin_differences
from neobert.runfiles.chat_template import read_template
from neobert.runfiles.checkpoint.folders import (
    belongs_to,
    checkpoint_roots,
    find_checkpoint_and_rejected,
    newest_usable_checkpoint,
)
from neobert.runfiles.checkpoint.manifest import Manifest, read_manifest, verify_checkpoint
from neobert.runfiles.checkpoint.refusal import IntactCheckpointError
from neobert.runfiles.checkpoint.state import CONFIG, DATA_FINGERPRINT, STATE, STATE_DIR, TOKENIZER_DIGEST
from neobert.runfiles.continuation import (
    continuation_differences,
    find_source_checkpoint,
    tokenizer_differences,
    with_located_text,
)
from neobert.runfiles.resume_policy import numeric_differences, schedule_differences, structural_differences
from neobert.runfiles.run_dir import CHECKPOINTS
from validators.facts_host import ResumeFacts

SAVED_CONFIG = Path(STATE_DIR, CONFIG)
SAVED_STATE = Path(STATE_DIR, STATE)

Compare = Callable[[Mapping[str, Any], Mapping[str, Any]], Sequence[object]]


def probe_resume(subject: Subject) -> ResumeFacts:
    """Find and verify the checkpoint to resume or continue from, and compare its config with the run's."""
    selector = subject.config.trainer.resume_from_checkpoint
    nothing = ResumeFacts(
        selector=selector, target="", exists=False, is_verified=False, reason="", step=0,
        structural_differences=(),
    )  # fmt: skip
    root, check = subject.output_dir / CHECKPOINTS, partial(_verify_in_time, subject)
    continued: str | None = None
    try:
        found, passed_by = find_checkpoint_and_rejected(root, selector, check)
        if found is None and (continued := subject.config.trainer.continue_from) is not None:
            found = find_source_checkpoint(continued, check)
    except ProjectError as error:
        alternative = _newest_other_checkpoint((*checkpoint_roots(Path(error.place)), root), subject)
        return replace(
            nothing,
            target=error.place,
            exists=_file_exists(error.place),
            reason=error.message,
            alternative=alternative,
            way_out=error.hint if isinstance(error, IntactCheckpointError) else "",
            is_continued=continued is not None,
        )
    if found is None:
        return nothing
    folder, manifest = found
    saved, current = read_json(folder / SAVED_CONFIG), to_dict(subject.config)
    state, source = read_json(folder / SAVED_STATE), _parse_saved_config(with_located_text(saved, folder))
    return replace(
        nothing,
        target=str(folder),
        exists=True,
        is_verified=True,
        step=manifest.step,
        structural_differences=_difference_texts(
            saved, current, continuation_differences if continued else structural_differences
        ),
        passed_by=tuple(map(str, passed_by)),
        learning_rate=_saved_learning_rate(state),
        is_elsewhere=not belongs_to(subject.output_dir, folder),
        is_continued=continued is not None,
        lacks_line=state.get("row") is not None,
        stable_steps=None if source is None else _plateau_steps(source),
        **_source_facts(source if continued else None),
        tokenizer_digest=_input_digest(state, TOKENIZER_DIGEST),
        data_fingerprint=_input_digest(state, DATA_FINGERPRINT),
        tokenizer_differences=_difference_texts(saved, current, tokenizer_differences) if continued else (),
        numeric_differences=() if continued else _difference_texts(saved, current, numeric_differences),
        plugin_differences=() if continued else _difference_texts(saved, current, plugin_differences),
        schedule_differences=_difference_texts(saved, current, schedule_differences) if saved else None,
    )


def _newest_other_checkpoint(roots: tuple[Path, ...], subject: Subject) -> str:
    """Return the newest verified checkpoint of the first folder that has one, or an empty string."""
    for root in roots:
        with suppress(PermissionError):
            if usable := newest_usable_checkpoint(root, partial(_verify_in_time, subject)):
                return str(usable)
    return ""


def _file_exists(path: str) -> bool:
    """Return whether a file exists; True in a folder that this user cannot read."""
    try:
        return Path(path).exists()
    except PermissionError:
        return True


def _verify_in_time(subject: Subject, folder: Path) -> Manifest:
    """Verify a checkpoint and return its manifest; request the time that a slow disk needs for it before."""
    request_reading_time(subject, folder, read_manifest(folder).size_bytes)
    return verify_checkpoint(folder)


def _difference_texts(
    saved: Mapping[str, Any], current: Mapping[str, Any], compare: Compare
) -> tuple[str, ...]:
    return tuple(map(str, compare(saved, current))) if saved else ()


def _parse_saved_config(saved: Mapping[str, Any]) -> RunConfig | None:
    """Return a saved config, or None if this version cannot read it."""
    try:
        return from_dict(without_removed(saved, keep_set=False))
    except ProjectError:
        return None


def _plateau_steps(config: RunConfig) -> tuple[int, int]:
    schedule = build_schedule(config.scheduler, config.trainer.max_steps)
    return schedule.warmup_steps, schedule.decay_start


def _source_facts(config: RunConfig | None) -> dict[str, Any]:
    """Return the facts about the run that is continued on other text; empty if its config is unknown."""
    if config is None:
        return {}
    return {
        "source_reason": _why_no_source(config),
        "muon_peak": config.optimizer.muon_lr or config.optimizer.lr,
    }


def _why_no_source(config: RunConfig) -> str:
    """Return why a run's text, tokenizer or chat template cannot be read; empty if they can."""
    local = (corpus for corpus in list_corpora(config.dataset) if not is_on_hub(corpus))
    if reason := why_no_text(local):
        return reason
    path, template = config.tokenizer.path, config.tokenizer.chat_template
    if path is not None and not has_tokenizer(path):
        return f"there is no tokenizer in {path}"
    if template is not None:
        try:
            read_template(template)
        except ProjectError as error:
            return error.located_message
    return ""


def _input_digest(state: Mapping[str, Any], name: str) -> str:
    """Return the digest `name` of the checkpoint's text or tokenizer; empty if it is unknown."""
    identity = state.get("identity")
    digest = identity.get(name) if isinstance(identity, dict) else None
    return digest if isinstance(digest, str) else ""


def _saved_learning_rate(state: Mapping[str, Any]) -> float | None:
    rate = state.get("learning_rate")
    return rate if isinstance(rate, float) and math.isfinite(rate) else None
