"""JSON of another process or of a file, read into a dataclass by pydantic.

pydantic is imported by the first call, which saves commands that read no such JSON 0.05 s of CPU time.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from neobert.schema_fields import STRICT

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
WRONG_VALUE = "Input should "
"""Start of pydantic's messages about a value."""
UNKNOWN_FIELD = "unexpected_keyword_argument"
MARK, SHIFT = "\uffff", 0x10_0000
ENCODABLE = {code: f"{MARK}{chr(code + SHIFT)}" for code in range(0xD800, 0xE000)} | {ord(MARK): MARK + MARK}
"""Escapes of lone surrogates, which file names that are not UTF-8 have and pydantic rejects."""
ENCODED = re.compile(f"{MARK}(.)")


def read_as(kind: type[T], content: Any, modules: tuple[ModuleType, ...] = ()) -> T:
    """Return JSON content as this dataclass. Raises `ValueError` with the first field that is wrong.

    Strict: no unknown fields, no conversions, no NaN or infinity. An integer is accepted as a float.

    Args:
        modules: where annotations are defined that the module of `kind` imports for type checkers only.
    """
    from pydantic import ValidationError

    try:
        adapter = _adapter(kind, modules)  # type: ignore[arg-type]  # mypy knows no type[T] as hashable
        text = json.dumps([content], ensure_ascii=False)
        value: T = adapter.validate_json(text.translate(ENCODABLE))[0]
    except ValidationError as error:
        raise ValueError(_sentence(kind.__name__, error.errors(include_url=False)[0])) from None
    return value if text.isascii() else _decoded(value)


def _decoded(value: Any) -> Any:
    """Return the value with the names that are not UTF-8 as they were."""
    if isinstance(value, str):
        return ENCODED.sub(_surrogate, value)
    if isinstance(value, list | tuple):
        return type(value)(map(_decoded, value))
    if isinstance(value, dict):
        return {_decoded(name): _decoded(each) for name, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _decoded(getattr(value, each.name)) for each in fields(value)})
    return value


def _surrogate(escape: re.Match[str]) -> str:
    return MARK if escape[1] == MARK else chr(ord(escape[1]) - SHIFT)


def _sentence(name: str, error: Mapping[str, Any]) -> str:
    place, message = ".".join(map(str, error["loc"][1:])) or name, str(error["msg"])
    if error["type"] == UNKNOWN_FIELD:
        return f"{place}: unknown field"
    if not message.startswith(WRONG_VALUE):
        return f"{place}: {message[0].lower()}{message[1:]}"
    return f"{place} should {message.removeprefix(WRONG_VALUE)}, got {reprlib.repr(error['input'])}"


@cache
def _adapter(kind: Any, modules: tuple[ModuleType, ...]) -> TypeAdapter[tuple[Any]]:
    from pydantic import ConfigDict, TypeAdapter

    names = {name: each for module in modules for name, each in vars(module).items()}
    # pydantic takes the settings of a dataclass from the dataclass only; those of a tuple apply inside it.
    settings = ConfigDict(**STRICT, defer_build=True)  # type: ignore[typeddict-item]
    adapter: TypeAdapter[tuple[Any]] = TypeAdapter(tuple[kind], config=settings)
    adapter.rebuild(_types_namespace=names)
    return adapter
