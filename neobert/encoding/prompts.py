"""Prompts: texts that a model expects before queries and documents, as sentence-transformers saves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from neobert.errors import EXIT_USAGE, ProjectError
from neobert.plurals import listed
from neobert.printable import printable
from neobert.runfiles.model_folder import CODE, read_json

PROMPTS_FILE = "config_sentence_transformers.json"
QUERY, DOCUMENTS = "query", ("document", "passage", "corpus")
"""Name of the query prompt, and names of the document prompt, in order of preference."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts of a model folder by name.

    Attributes:
        default: name of the prompt before texts of no declared kind; None for no prompt.
    """

    by_name: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    @property
    def query_prompt(self) -> str:
        """Prompt before a query; empty if the folder has none."""
        return self.by_name.get(QUERY, "")

    @property
    def document_prompt(self) -> str:
        """Prompt before a document; empty if the folder has none."""
        return next((self.by_name[name] for name in DOCUMENTS if name in self.by_name), "")

    @property
    def text_prompt(self) -> str:
        """Prompt before a text of no declared kind; empty if the folder declares no default prompt."""
        return "" if self.default is None else self.by_name[self.default]

    def prompt_named(self, name: str) -> str:
        """Return a prompt by its name. Raises `ProjectError` if the model has no such prompt."""
        if name in self.by_name:
            return self.by_name[name]
        known = printable(listed(sorted(self.by_name))) or "none"
        message = f"the model has no prompt {printable(name)!r} (prompts: {known})"
        hint = f"{'pass one of these, or' if self.by_name else 'pass'} --prompt-text TEXT"
        raise ProjectError("unknown-prompt", message, hint, "--prompt", EXIT_USAGE)


def read_prompts(folder: Path) -> Prompts:
    """Read the prompts that a model folder declares. Raises `ProjectError` for an unreadable declaration."""
    file = folder / PROMPTS_FILE
    saved = read_json(file, missing_ok=True)
    by_name, default = saved.get("prompts") or {}, saved.get("default_prompt_name")
    if not isinstance(by_name, dict) or not all(isinstance(text, str) for text in by_name.values()):
        message = "prompts is not an object of texts"
        raise ProjectError(CODE, message, 'write "prompts": {"query": "TEXT"}', str(file))
    if default is not None and default not in by_name:
        message = f"default_prompt_name {printable(str(default))} is not among the prompts"
        raise ProjectError(CODE, message, "set default_prompt_name to a prompt, or to null", str(file))
    return Prompts(by_name, default)
