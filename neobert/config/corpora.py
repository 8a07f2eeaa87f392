"""Corpora of a run: the corpus of the section `dataset`, or the corpora of its mixture."""

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


LINES_TO_DOCUMENTS = (
    "documents end at blank lines; to add blank lines: `fold -s -w 2000 {} | sed G > documents.txt`"
)
"""Hint for a .txt file without blank lines, which is one document however long it is."""


def corpora_of(dataset: DatasetConfig) -> tuple[DatasetConfig, ...]:
    """Return one section `dataset` per corpus, without mixture.

    The keys that an entry of the mixture does not have are copied from the section; so are `train_split` and
    `text_column` if the entry leaves them null.
    """
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
    """Return a name per corpus of a mixture for reports: the last part of its path or name.

    Repeated names are numbered.
    """
    names = [Path(str(corpus.path or corpus.name)).name for corpus in dataset.mixture]
    return tuple(
        name if names.count(name) == 1 else f"{name} {number}" for number, name in enumerate(names, start=1)
    )


def token_shares(dataset: DatasetConfig) -> tuple[float, ...]:
    """Return each corpus's fraction of the training tokens; the fractions add up to 1."""
    if not dataset.mixture:
        return (1.0,)
    total = sum(corpus.weight for corpus in dataset.mixture)
    return tuple(corpus.weight / total for corpus in dataset.mixture)


def describe_builder(name: str) -> str:
    """Return the error message for a dataset.name that is a file format, such as `json`."""
    return f"dataset.name {name} is a file format of the datasets library, not a dataset"
