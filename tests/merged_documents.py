"""A planted fault: the first two documents of a packed row attend to each other."""

import pytest

from neobert.families import packed_attention
from neobert.model import attention


def two_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge the bounds wherever attention reads them, by SDPA for each document."""
    real = attention.segment_lengths

    def merged(*arguments):
        first, second, *others = real(*arguments)
        return [first + second, *others]

    for module in (packed_attention, attention):
        monkeypatch.setattr(module, "segment_lengths", merged)
