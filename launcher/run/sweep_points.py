"""Points of a sweep: the values of each swept key, and their cartesian product."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import NoReturn

from neobert.config.keys import describe_field
from neobert.errors import EXIT_USAGE, ProjectError

MAX_POINTS = 1000
SYNTAX = "write KEY=VALUE,VALUE,... or KEY=START:STOP:STEP, as in --sweep optimizer.lr=3e-4,1e-3"
OWN_KEYS = ("trainer.output_dir", "trainer.resume_from_checkpoint")
"""Keys that the sweep sets for each point."""
RANGE = re.compile(r"([^:,\s]+):([^:,\s]+)(?::([^:,\s]+))?")
SEARCHED = re.compile(r"(log|uniform|int)\(.*\)")
NESTING = {"[": 1, "{": 1, "]": -1, "}": -1}
UNUSUAL = re.compile(r"[^\w.+=-]+")


@dataclass(frozen=True, slots=True)
class Axis:
    """A swept key and its values, as text."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of values.

    Attributes:
        label: the combination, as `lr=3e-4 seed=1`.
        folder: name of its run directory, below the folder of the sweep.
        overrides: the combination as `KEY=VALUE` arguments.
    """

    label: str
    folder: str
    overrides: tuple[str, ...]


def parse_axes(arguments: Sequence[str]) -> list[Axis]:
    """Parse the arguments of `--sweep`. Raises ProjectError for wrong syntax or a key that is not allowed."""
    axes = [_parse_axis(argument) for argument in arguments]
    for axis, others in ((axis, axes[:index]) for index, axis in enumerate(axes)):
        if axis.key in [other.key for other in others]:
            refuse_argument(axis.key, "the key is swept twice", "pass all values of a key in one --sweep")
        if axis.key in OWN_KEYS:
            refuse_argument(axis.key, "the key is set by the sweep for each point", "sweep another key")
    return axes


def expand(axes: Sequence[Axis]) -> list[Point]:
    """Return the cartesian product; the last key varies fastest. Raises ProjectError above 1,000 points."""
    names = short_names([axis.key for axis in axes])
    combinations = list(itertools.islice(itertools.product(*(axis.values for axis in axes)), MAX_POINTS + 1))
    if len(combinations) > MAX_POINTS:
        refuse_argument("--sweep", f"the sweep has more than {MAX_POINTS:,} points", "sweep fewer values")
    points: dict[str, Point] = {}
    for number, values in enumerate(combinations):
        words = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
        overrides = tuple(f"{axis.key}={value}" for axis, value in zip(axes, values, strict=True))
        folder = UNUSUAL.sub("_", "-".join(words).replace(",", "-"))
        while folder in points:
            folder = f"{folder}-{number}"
        points[folder] = Point(" ".join(words), folder, overrides)
    return list(points.values())


def _parse_axis(argument: str) -> Axis:
    key, equals, text = argument.partition("=")
    if not (key and equals and text):
        refuse_argument(argument, "the key or its values are missing", SYNTAX)
    if SEARCHED.fullmatch(text):
        refuse_argument(argument, "a sweep takes values, no range to search", f"pass --search '{argument}'")
    matched = RANGE.fullmatch(text)
    values = tuple(_numbers_in_range(argument, matched) if matched else _split_at_commas(text))
    if "" in values or len(set(map(_parse_number, values))) < len(values):
        refuse_argument(argument, "the list has an empty or a repeated value", SYNTAX)
    if any(value.startswith("[") for value in values) and not _takes_list(key):
        refuse_argument(
            argument, "the values are in brackets", f"pass --sweep {key}={re.sub(r'[][]', '', text)}"
        )
    return Axis(key, values)


def _takes_list(key: str) -> bool:
    info = describe_field(tuple(key.split(".")))
    return info is None or "list" in info.type


def _parse_number(value: str) -> Decimal | str:
    """Return a finite number as Decimal, so that 1e-4 equals 0.0001; any other text unchanged."""
    try:
        number = Decimal(value)
    except InvalidOperation:
        return value
    return number if number.is_finite() else value


def _split_at_commas(text: str) -> Iterator[str]:
    """Split at the commas outside quotes, brackets and braces."""
    value, depth, quote = "", 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        depth += 0 if quote else NESTING.get(character, 0)
        if character == "," and not depth and not quote:
            yield value.strip()
            value = ""
        else:
            value += character
    yield value.strip()


def _numbers_in_range(argument: str, matched: re.Match[str]) -> Iterator[str]:
    """Yield the decimal numbers of START:STOP:STEP, which excludes STOP. STEP defaults to 1."""
    try:
        start, stop, step = (Decimal(text) for text in matched.groups(default="1"))
    except InvalidOperation:
        refuse_argument(
            argument, "the value is not a range of numbers", f"quote text that contains colons; {SYNTAX}"
        )
    if (
        not all(number.is_finite() for number in (start, stop, step))
        or step == 0
        or (stop - start) / step <= 0
    ):
        refuse_argument(
            argument, "the range is empty", "START:STOP:STEP excludes STOP, as Python's range does"
        )
    for index in range(MAX_POINTS + 1):
        number = start + index * step
        if (number >= stop) if step > 0 else (number <= stop):
            return
        yield f"{number:f}"


def short_names(keys: Sequence[str]) -> Sequence[str]:
    """Return the keys without their sections, or all keys unchanged if two keys have the same last part."""
    short = [key.rpartition(".")[2] for key in keys]
    return short if len(set(short)) == len(short) else keys


def refuse_argument(argument: str, problem: str, hint: str) -> NoReturn:
    """Raise ProjectError for an argument of a sweep or a search."""
    raise ProjectError("sweep", problem, hint, argument, exit_code=EXIT_USAGE)
