"""Splits and their slices: `train`, `train[:1%]`, `train[100:200]`; choice of the evaluation split."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from neobert.config.schema import DatasetConfig
from neobert.errors import ProjectError

TRAIN_KEY, EVALUATION_KEY = "dataset.train_split", "dataset.eval_split"
Bounds = tuple[int, int | None]
"""Index of the first document of a slice, and index after the last; None for the end."""
EVALUATION_NAMES = ("validation", "eval", "dev", "test")
ALIASES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "eval": "eval",
    "evaluation": "eval",
    "test": "test",
    "testing": "test",
    "dev": "dev",
}
_SPLIT = re.compile(r"^(?P<name>[\w.\-]+)(?:\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?$")


class SplitSlice(NamedTuple):
    """A split name and a slice; a bound is (number, is_percent), or None if that end is open."""

    name: str
    start: tuple[int, bool] | None = None
    stop: tuple[int, bool] | None = None

    @property
    def is_whole(self) -> bool:
        """Return whether the slice is the whole split."""
        return self.start is None and self.stop is None

    @property
    def needs_total(self) -> bool:
        """Return whether the bounds depend on the number of documents."""
        return any(bound is not None and (bound[1] or bound[0] < 0) for bound in (self.start, self.stop))

    def bounds(self) -> str:
        """Return the slice as text, such as `[:10%]`."""
        spelled = ("" if b is None else f"{b[0]}{'%' * b[1]}" for b in (self.start, self.stop))
        return f"[{':'.join(spelled)}]"

    def resolve(self, total: int | None) -> Bounds:
        """Return (start, stop) as document indices, with stop None for the end.

        Percentages round to the nearest document; `total` may be None unless `needs_total`.
        """
        start = _resolve_bound(self.start, total) if self.start else 0
        stop = _resolve_bound(self.stop, total) if self.stop else None
        return start, stop


def parse_split(text: str, key: str) -> SplitSlice:
    """Parse a split in the syntax of `datasets`. Raises DAT001 with `key` as the location."""
    match = _SPLIT.match(text.strip())
    if match is None:
        raise ProjectError(
            "DAT001",
            f"{text!r} is not a split",
            "use a name with at most one slice, e.g. train, train[:1%] or train[100:200]",
            key,
        )
    bounds = [_parse_bound(match[group], key) for group in ("start", "stop")]
    return SplitSlice(match["name"], *bounds)


def head_slice(count: int) -> SplitSlice:
    """Return the slice of the first `count` documents."""
    return SplitSlice("", None, (count, False))


def slice_without_head(count: int) -> SplitSlice:
    """Return the slice of all documents but the first `count`."""
    return SplitSlice("", (count, False))


def splits_to_read(config: DatasetConfig, names: Iterable[str]) -> tuple[SplitSlice, SplitSlice | None]:
    """Return the slices of training and evaluation text; None if no split is for evaluation.

    `names` are the splits of the data. If dataset.eval_split is null, evaluation uses a split with a usual
    name. Raises DAT001 for a split that does not exist.
    """
    training = _parse_existing_split(config.train_split, names, TRAIN_KEY)
    evaluation = config.eval_split or evaluation_split(tuple(names), training.name)
    return training, None if evaluation is None else _parse_existing_split(evaluation, names, EVALUATION_KEY)


def _parse_existing_split(text: str, names: Iterable[str], key: str) -> SplitSlice:
    wanted, known = parse_split(text, key), list(names)
    if wanted.name not in known:
        hint = f"set {key} to one of: {', '.join(known)}"
        raise ProjectError("DAT001", f"there is no split {wanted.name!r}", hint, key)
    return wanted


def refuse_overlap(train: Bounds, evaluation: Bounds, labels: str) -> None:
    """Raise DAT006 for slices of one split that overlap; `labels` names both."""
    (_, stop), (start, _) = sorted((train, evaluation), key=lambda bounds: bounds[0])
    if stop is None or stop > start:
        message = f"evaluation and training documents overlap: {labels}"
        hint = "use slices that do not overlap, such as train[1000:] and train[:1000], or set "
        raise ProjectError("DAT006", message, f"{hint}dataset.eval_samples", EVALUATION_KEY)


def evaluation_split(names: tuple[str, ...], training: str) -> str | None:
    """Return the first of `EVALUATION_NAMES` that is a split other than `training`; None if none is."""
    return next((name for name in EVALUATION_NAMES if name in names and name != training), None)


def _parse_bound(text: str | None, key: str) -> tuple[int, bool] | None:
    if text is None:
        return None
    number, is_percent = int(text.rstrip("%")), text.endswith("%")
    if is_percent and abs(number) > 100:
        raise ProjectError("DAT001", f"{text} is more than the whole split", "lower the bound to 100 %", key)
    return number, is_percent


def _resolve_bound(bound: tuple[int, bool], total: int | None) -> int:
    number, is_percent = bound
    if not is_percent and number >= 0:
        return number
    assert total is not None
    index = round(number * total / 100) if is_percent else number
    return max(0, index + total) if index < 0 else min(index, total)
