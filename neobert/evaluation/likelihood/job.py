"""Resumable scoring of many texts, saved in shards."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neobert.atomic_write import write_atomically
from neobert.encoding.counts import TextCounts
from neobert.encoding.shards import Shards, describe_changes, write_arrays
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.progress import Progress
from neobert.runfiles.checkpoint.model_files import weights_digest
from neobert.runfiles.model_folder import model_folder

if TYPE_CHECKING:
    from neobert.evaluation.likelihood.scorer import Likelihoods


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Model, precision and output of a scoring job.

    Attributes:
        output: .npy file for the scores [N, 2].
    """

    folder: str
    output: Path
    max_length: int | None = None
    dtype: str | None = None
    device: str | None = None
    texts_per_shard: int = 2_000


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores [N texts, 2], counts of texts and tokens, and the duration of the last session.

    Attributes:
        weights: digest of the weights that computed the scores.
    """

    values: Likelihoods
    counts: TextCounts
    kernels: str
    seconds: float
    weights: str


def score_all(
    texts: Iterable[str], identity: Mapping[str, Any], settings: Settings, num_texts: int | None = None
) -> Scores:
    """Score the texts that have no saved score, and return the scores of all texts.

    Args:
        identity: JSON values that differ for other texts.
        num_texts: number of texts, for the progress; None if it is unknown.

    Raises `ProjectError` if the output belongs to other texts, weights or settings.
    """
    from neobert.encoding.placement import model_identity  # imports torch, which takes seconds

    folder = model_folder(Path(settings.folder))
    settings = replace(settings, folder=str(folder))  # a run directory may get another checkpoint meanwhile
    whole = {
        **identity,
        **model_identity(folder, settings.device, settings.dtype),
        "max_length": settings.max_length,
        "texts_per_shard": settings.texts_per_shard,
    }
    weights = weights_digest(folder)
    if (finished := _load_finished(whole, settings.output, weights)) is not None:
        return finished
    shards = Shards(settings.output)
    with shards.lock(whole):
        _score_missing(texts, whole, settings, shards, num_texts)
    finished = _load_finished(whole, settings.output, weights)
    assert finished is not None
    return finished


def _score_missing(
    texts: Iterable[str],
    identity: Mapping[str, Any],
    settings: Settings,
    shards: Shards,
    num_texts: int | None,
) -> None:
    from neobert.evaluation.likelihood.load import load_scorer  # imports torch, for seconds

    scorer = load_scorer(
        settings.folder, max_length=settings.max_length, dtype=settings.dtype, device=settings.device
    )
    started_s, progress = time.perf_counter(), Progress("scoring", "texts", num_texts)
    num_shards, _ = shards.write_missing(texts, settings.texts_per_shard, scorer, scorer.score, progress)
    record = {
        "identity": identity,
        "counts": asdict(shards.counts(num_shards)),
        "kernels": scorer.model.kernels,
        "seconds": time.perf_counter() - started_s,
    }
    _record_path(settings.output).unlink(missing_ok=True)
    shards.merge(num_shards, partial(write_arrays, width=2))
    write_atomically(_record_path(settings.output), json.dumps(record).encode())


def _load_finished(identity: Mapping[str, Any], output: Path, weights: str) -> Scores | None:
    """Return the scores of a complete evaluation, or None if it is not complete.

    Raises `ProjectError` if they belong to other texts, weights or settings: they would be overwritten.
    """
    try:
        record = json.loads(_record_path(output).read_text(encoding="utf-8"))
        earlier = dict(record["identity"])
        values = np.load(output, allow_pickle=False)
        counts = TextCounts(**record["counts"])
        found = Scores(values, counts, record["kernels"], record["seconds"], weights)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if changed := describe_changes(earlier, identity):
        hint = "choose another output, or remove this file"
        message = f"this file is the result of another evaluation: {changed}"
        raise ProjectError("evaluate-output", message, hint, str(output), EXIT_USAGE)
    return found


def remove_scores(output: Path) -> None:
    """Remove a scoring job's output and its record, if they exist."""
    for file in (_record_path(output), output):
        file.unlink(missing_ok=True)


def _record_path(output: Path) -> Path:
    return output.with_suffix(".json")
