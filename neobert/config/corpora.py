"""Corpora of a run: the one that the section `dataset` names, or those of its mixture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from neobert.config.schema import DatasetConfig

# fmt: off
BUILDER_NAMES = frozenset({
    "arrow", "audiofolder", "conll", "csv", "eval", "fasta", "fastq", "genbank", "harbor", "hdf5", "iceberg",
    "imagefolder", "json", "lance", "meshfolder", "mmcif", "niftifolder", "pandas", "parquet", "pdb",
    "pdffolder", "text", "tsfile", "videofolder", "vortex", "webdataset", "xml",
})
# fmt: on
BUILTIN = "builtin:"
"""Prefix of dataset.name for text that needs no file."""
USE_PATH = "set dataset.path to the file or folder, and remove dataset.name"


LINES_TO_DOCUMENTS = "a blank line ends a document: `fold -s -w 2000 {} | sed G > documents.txt` adds them"
"""Hint for a .txt file without blank lines, which is one document however long it is."""


def corpora_of(dataset: DatasetConfig) -> tuple[DatasetConfig, ...]:
    """Return one section per corpus; settings that an entry of the mixture omits come from the section."""
    if not dataset.mixture:
        return (dataset,)
    return tuple(
        replace(
            dataset,
            mixture=(),
            name=corpus.name,
            config=corpus.config,
            revision=corpus.revision,
            path=corpus.path,
            train_split=corpus.train_split or dataset.train_split,
            text_column=corpus.text_column or dataset.text_column,
        )
        for corpus in dataset.mixture
    )


def corpus_names(dataset: DatasetConfig) -> tuple[str, ...]:
    """Return a name for each corpus of a mixture: its file or last folder, numbered where two are equal."""
    names = [Path(str(corpus.path or corpus.name)).name for corpus in dataset.mixture]
    return tuple(
        name if names.count(name) == 1 else f"{name} {number}" for number, name in enumerate(names, start=1)
    )


def token_shares(dataset: DatasetConfig) -> tuple[float, ...]:
    """Return the share of the tokens that each corpus gets; their sum is 1."""
    if not dataset.mixture:
        return (1.0,)
    total = sum(corpus.weight for corpus in dataset.mixture)
    return tuple(corpus.weight / total for corpus in dataset.mixture)


def describe_builder(name: str) -> str:
    """Describe the error of a file format given as a dataset name."""
    return f"dataset.name {name} is a file format of the datasets library, not a dataset"
