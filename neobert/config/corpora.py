"""Corpora of a data set: the one that the section names, or those of its mixture."""

from __future__ import annotations

from dataclasses import replace

from neobert.config.schema import DatasetConfig

# fmt: off
BUILDER_NAMES = frozenset({
    "arrow", "audiofolder", "conll", "csv", "eval", "fasta", "fastq", "genbank", "harbor", "hdf5", "iceberg",
    "imagefolder", "json", "lance", "meshfolder", "mmcif", "niftifolder", "pandas", "parquet", "pdb",
    "pdffolder", "text", "tsfile", "videofolder", "vortex", "webdataset", "xml",
})
# fmt: on
# fmt: on
USE_PATH = "set dataset.path to the file or folder, and remove dataset.name"


def corpora_of(dataset: DatasetConfig) -> tuple[DatasetConfig, ...]:
    """Return one section per corpus; settings that an entry of the mixture leaves out are the section's."""
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


def token_shares(dataset: DatasetConfig) -> tuple[float, ...]:
    """Return the share of the tokens that each corpus gets; their sum is 1."""
    if not dataset.mixture:
        return (1.0,)
    total = sum(corpus.weight for corpus in dataset.mixture)
    return tuple(corpus.weight / total for corpus in dataset.mixture)


def describe_builder(name: str) -> str:
    """Return the problem of a file format that is given as the name of a data set."""
    return f"dataset.name {name} is a file format of the datasets library, not a data set"
