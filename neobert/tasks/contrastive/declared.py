"""Pooling and prompts that a folder of weights declares. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neobert.config.schema import RunConfig
from neobert.tasks.contrastive.section import CONTRASTIVE

POOLING = "contrastive.pooling"


def declared(folder: Path) -> Mapping[str, Any]:
    """Return pooling and prompts of a folder of sentence-transformers; nothing for other weights.

    Raises `ProjectError` for a folder with further modules, which the run would lose.
    """
    from neobert.encoding.declared import read_declared  # `lint` reads no checkpoint

    if not (folder / "modules.json").is_file():
        return {}
    found = read_declared(folder)
    prompts = {"query": found.prompts.of_queries, "document": found.prompts.of_documents}
    return {POOLING: found.pooling} | {
        f"contrastive.{name}_prompt": text for name, text in prompts.items() if text
    }


def undeclared(config: RunConfig, folder: Path) -> Mapping[str, str]:
    """Return the pooling with what the weights declare instead, if they do not declare the run's."""
    from neobert.encoding.declared import read_declared  # `lint` reads no checkpoint

    found = read_declared(folder).pooling
    return {} if found == CONTRASTIVE.of(config).pooling else {POOLING: found or "none"}
