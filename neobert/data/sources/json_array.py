"""The objects of a JSON array, read one at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_SPACE = re.compile(r"[ \t\r\n]*")
_START, _FIRST, _OBJECT, _NEXT, _END = "the array", "its first object", "an object", "a comma", "the end"
_SEPARATORS = {
    _START: {"[": _FIRST},
    _FIRST: {"]": _END},
    _OBJECT: {},
    _NEXT: {",": _OBJECT, "]": _END},
    _END: {},
}


class _Taken(NamedTuple):
    """Whole objects, the text after them, what is expected there, and why that text is not an object yet."""

    objects: list[dict[str, Any]]
    rest: str
    expected: str
    error: ValueError | None


def array_objects(chunks: Iterable[str], most_characters: int) -> Iterator[dict[str, Any]]:
    """Yield the objects of the array that the chunks join to.

    Raises ValueError for anything but one array of objects, each of at most `most_characters`.
    """
    taken, retry_at = _Taken([], "", _START, None), 0
    for chunk in chunks:
        text = taken.rest + chunk
        # An object of many chunks is not parsed from its start at each of them.
        if len(text) < retry_at:
            taken = taken._replace(objects=[], rest=text)
            continue
        taken = _take(text, taken.expected)
        yield from taken.objects
        retry_at = 2 * len(taken.rest)
        if len(taken.rest) > most_characters:
            raise taken.error or ValueError(f"one object is longer than {most_characters:,} characters")
    taken = _take(taken.rest, taken.expected)
    yield from taken.objects
    if taken.expected != _END or taken.rest:
        raise taken.error or ValueError(f"the text ends where {taken.expected} is expected")


def _take(text: str, expected: str) -> _Taken:
    """Parse as many objects as are whole."""
    decoder = json.JSONDecoder()
    objects: list[dict[str, Any]] = []
    place = _after_space(text, 0)
    while place < len(text):
        if text[place] in _SEPARATORS[expected]:
            expected, place = _SEPARATORS[expected][text[place]], place + 1
        elif text[place] == "{" and expected in (_FIRST, _OBJECT):
            try:
                found, place = decoder.raw_decode(text, place)
            except ValueError as error:
                return _Taken(objects, text[place:], expected, error)
            objects.append(found)
            expected = _NEXT
        else:
            wrong = ValueError(f"{text[place]!r} where {expected} is expected")
            return _Taken(objects, text[place:], expected, wrong)
        place = _after_space(text, place)
    return _Taken(objects, "", expected, None)


def _after_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return place if match is None else match.end()
