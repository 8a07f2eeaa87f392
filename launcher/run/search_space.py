"""Space of a search: the range or the choices of each key, and its corners."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.run.sweep_points import Axis, Point, expand, parse_axes, refuse, short_names

Value = float | int | str
"""A number, or the text of a choice."""
SYNTAX = (
    "write KEY=log(LOW,HIGH), KEY=uniform(LOW,HIGH), KEY=int(LOW,HIGH) or KEY=VALUE,VALUE,..., "
    "as in --search 'optimizer.lr=log(1e-4,3e-3)'"
)
RANGE = re.compile(r"([^=]+)=(log|uniform|int)\(([^,()]+),([^,()]+)\)")
CALL = re.compile(r"[^=]+=\w+\(")
CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A searched key.

    Attributes:
        kind: log, uniform or int for a range; choice.
        values: the two ends of the range, or the choices, as text.
    """

    key: str
    kind: str
    values: tuple[str, ...]

    @property
    def ends(self) -> tuple[float, float]:
        """Return the ends of the range."""
        low, high = map(float, self.values)
        return low, high

    def holds(self, value: Any) -> bool:
        """Return whether a value, which may come from a file, is in the range or one of the choices."""
        if self.kind == CHOICE:
            return value in self.values
        kinds = int if self.kind == "int" else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and self._is_between(value)

    def _is_between(self, value: float) -> bool:
        low, high = self.ends
        return low <= value <= high


def parse_space(arguments: Sequence[str]) -> list[Parameter]:
    """Parse the arguments of `--search`. Raises ProjectError for wrong syntax or a forbidden key."""
    ranges = {argument: matched for argument in arguments if (matched := RANGE.fullmatch(argument))}
    plain = [f"{matched[1]}=0" if (matched := ranges.get(each)) else each for each in arguments]
    axes = parse_axes(plain)
    return [
        _range(argument, *ranges[argument].groups()) if argument in ranges else _choices(argument, axis)
        for argument, axis in zip(arguments, axes, strict=True)
    ]


def corners(space: Sequence[Parameter]) -> list[Point]:
    """Return the points at the ends of all ranges, with every choice."""
    return expand([Axis(each.key, each.values) for each in space])


def trial_point(
    space: Sequence[Parameter], number: int, values: Mapping[str, Value], first: int | None = None
) -> Point:
    """Return the point of a trial.

    Args:
        first: number of an earlier trial with equal values, whose run directory this one has.
    """
    names = short_names([each.key for each in space])
    words = [f"{name}={_short(values[each.key])}" for name, each in zip(names, space, strict=True)]
    overrides = tuple(f"{each.key}={values[each.key]}" for each in space)
    folder = f"trial-{number if first is None else first}"
    return Point(f"trial-{number} {' '.join(words)}", folder, overrides)


def own_values(
    space: Sequence[Parameter], own: Mapping[str, Any], choices: Mapping[tuple[str, str], Any]
) -> dict[str, Value] | None:
    """Return the values of the run file as a point of the space; None if it is not in it.

    Args:
        own: config values by key.
        choices: config value of each choice, by key and text.
    """
    values: dict[str, Value] = {}
    for each in space:
        value: Any = own.get(each.key)
        if each.kind == CHOICE:
            value = next((text for text in each.values if choices[each.key, text] == value), None)
        if not each.holds(value):
            return None
        values[each.key] = value
    return values


def _range(argument: str, key: str, kind: str, *ends: str) -> Parameter:
    try:
        low, high = (int(end) if kind == "int" else float(end) for end in ends)
    except ValueError:
        refuse(argument, "is not a range of numbers", SYNTAX)
    if not (abs(low) < float("inf") and abs(high) < float("inf") and low < high):
        refuse(argument, "is an empty range", "write the lower end first")
    if kind == "log" and low <= 0:
        refuse(argument, f"starts at {ends[0]}, but a log range must be above 0", "raise its lower end")
    return Parameter(key, kind, tuple(end.strip() for end in ends))


def _choices(argument: str, axis: Axis) -> Parameter:
    if len(axis.values) < 2 or CALL.match(argument):
        refuse(argument, "is neither a range nor several values", SYNTAX)
    return Parameter(axis.key, CHOICE, axis.values)


def _short(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
