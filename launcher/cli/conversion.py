"""Conversion of arguments without pydantic.

typer converts each value with a pydantic adapter and imports pydantic for the first one, which takes longer
than all of `--help`. Text, paths and choices need no adapter; typer converts anything else, and explains
what is wrong with a value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin


class PlainConversion:
    """The conversion of one parameter. It takes the place of the one that typer builds on first use."""

    def __init__(self, annotation: Any) -> None:
        is_list = get_origin(annotation) is list
        self.item = get_args(annotation)[0] if is_list else annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value as its annotation has it. Raises typer's error for one that does not fit."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        items = value if isinstance(value, list | tuple) else [value]
        if not all(map(self._fits, items)):
            param._runtime_param = None
            return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
        converted = [Path(item) if self.item is Path else item for item in items]
        return converted if items is value else converted[0]

    def _fits(self, item: Any) -> bool:
        if get_origin(self.item) is Literal:
            return item in get_args(self.item)
        return self.item in (str, Path) and isinstance(item, str)


def convert_plainly(command: Any, ctx: Any) -> None:
    """Give the parameters of a command this conversion; a typer that has no such thing keeps its own."""
    for param in command.get_params(ctx):
        if hasattr(param, "_runtime_param") and not _is_checked(param.type_descriptor.parameter_info):
            param._runtime_param = PlainConversion(param.type_descriptor.annotation)


def _is_checked(info: Any) -> bool:
    """Tell whether typer does more with a value than to convert it: parse it, or look for its file."""
    asks = any(getattr(info, name, None) for name in ("parser", "exists", "writable", "resolve_path"))
    return asks or not (getattr(info, "file_okay", True) and getattr(info, "dir_okay", True))
