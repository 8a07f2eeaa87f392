"""Refusals, which have a code, say what is wrong, and name a way out."""

from collections.abc import Callable
from typing import Any

import pytest

from neobert.errors import ProjectError


def refusal_of(call: Callable[..., Any], code: str, says: str, *arguments: Any, **more: Any) -> ProjectError:
    """Return what a call raises, whose code and words are these."""
    with pytest.raises(ProjectError) as caught:
        call(*arguments, **more)
    assert (caught.value.code, bool(caught.value.hint)) == (code, True)
    assert says in caught.value.message
    return caught.value
