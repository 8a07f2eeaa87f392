"""Training of a tokenizer on a run's corpus.

Usage: `python -m neobert.data.tokenize.train_tokenizer RESOLVED.json FOLDER`.
Writes a Hugging Face tokenizer to FOLDER, for `tokenizer.path`, and a JSON report to standard output.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from neobert.config import from_dict
from neobert.config.schema import RunConfig
from neobert.data.batches.shape import segment_length
from neobert.data.sources.corpus import open_corpus
from neobert.data.store.token_store import convert_write_errors
from neobert.data.tokenize.tokenizers import TokenizerBundle, load_tokenizer
from neobert.json_program import serve
from neobert.plugins.dataset import dataset_plugin_splits
from neobert.tasks.specs import spec_of


def train_to_folder(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Train the tokenizer of the section `tokenizer` on a run's training text; return a report."""
    spec = spec_of(config)
    rows = spec.rows(config)
    corpus = open_corpus(config.dataset, rows, plugged=dataset_plugin_splits(config.plugins, rows))
    tokenizer = load_tokenizer(replace(config.tokenizer, path=None, name=None), corpus, spec.roles)
    tokenizer.tokenizer.model_max_length = segment_length(config)
    with convert_write_errors(folder, "choose a folder on another disk"):
        save_atomically(tokenizer, folder)
    return {"folder": str(folder), "corpus": corpus.label, "tokenizer": tokenizer.summary()}


def save_atomically(tokenizer: TokenizerBundle, folder: Path) -> None:
    """Save a tokenizer to an empty or new folder, without partial files on a full disk. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".partial-", dir=folder) as partial:
        tokenizer.save(Path(partial))
        for file in Path(partial).iterdir():
            file.rename(folder / file.name)


if __name__ == "__main__":
    *rest, target = sys.argv[1:] or [""]
    sys.exit(serve(lambda content: train_to_folder(from_dict(content), Path(target)), rest, logging.INFO))
