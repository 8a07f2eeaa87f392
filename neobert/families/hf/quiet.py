"""Loading with transformers, without its output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging

from neobert.data.sources.hub import suppress_logs


@contextmanager
def suppress_loading_output() -> Iterator[None]:
    """Suppress the progress bar and the report of missing and unused weights, which the callers check."""
    shows_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with suppress_logs("transformers"):
            yield
    finally:
        if shows_bars:
            logging.enable_progress_bar()
