"""Writing a file, resolving it, and reading what is said about it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from neobert.config import ConfigError, ConfigIssue, Resolution, load_document, parse_overrides, resolve

Resolve = Callable[..., Resolution]
Issues = Callable[..., tuple[ConfigIssue, ...]]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file and give its path."""

    def write(content: str | bytes, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def resolve_text(write: Callable[..., Path]) -> Resolve:
    """Resolve a text as a run file, with overrides."""

    def resolve_text(content: str | bytes, *overrides: str, name: str = "run.yaml") -> Resolution:
        return resolve([load_document(write(content, name))], parse_overrides(overrides))

    return resolve_text


@pytest.fixture
def issues_of(resolve_text: Resolve) -> Issues:
    """All that is wrong with a text."""

    def issues_of(content: str | bytes, *overrides: str, name: str = "run.yaml") -> tuple[ConfigIssue, ...]:
        with pytest.raises(ConfigError) as caught:
            resolve_text(content, *overrides, name=name)
        return caught.value.issues

    return issues_of
