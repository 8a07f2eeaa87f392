"""Corpora of a run: the corpus of the section `dataset`, or the corpora of its mixture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote

from neobert.config.schema import DatasetConfig, MixtureCorpus
from neobert.config.text_formats import TEXT, text_format

# fmt: off
BUILDER_NAMES = frozenset({
    "arrow", "audiofolder", "conll", "csv", "eval", "fasta", "fastq", "genbank", "harbor", "hdf5", "iceberg",
    "imagefolder", "json", "lance", "meshfolder", "mmcif", "niftifolder", "pandas", "parquet", "pdb",
    "pdffolder", "text", "tsfile", "videofolder", "vortex", "webdataset", "xml",
})
# fmt: on
BUILTIN = "builtin:"
"""Prefix of dataset.name for text that needs no file."""
PLUGGED = f"{BUILTIN}plugins.dataset"
"""Value of dataset.name with a dataset plug-in, for everything that depends on the source of the text."""
TOKENIZER_OF_THE_IDS = "set tokenizer.path to the tokenizer that the .ds files were written with"
USE_PATH = "set dataset.path to the file or folder, and remove dataset.name"


LINES_TO_DOCUMENTS = (
    "set dataset.document_per_line to true if each line is a document; to add blank lines, at which "
    "documents end: `fold -s -w 2000 {} | "
    "awk '{{print; n += length}} n > 2000 {{print \"\"; n = 0}}' > documents.txt`"
)
"""Hint for a .txt file without blank lines, which is one document however long it is. The blank lines come
after at least 2,000 characters, since the lines may belong to one page."""


def hint_for_one_document(paths: tuple[str, ...]) -> str:
    """Return the hint for a text at these paths that is too short to hold out a share of its documents."""
    if len(paths) == 1 and text_format(Path(paths[0])) == TEXT:
        return LINES_TO_DOCUMENTS.format(quote(paths[0]))
    if len(paths) == 1 and any(Path(paths[0]).glob("*.txt")):
        return LINES_TO_DOCUMENTS.format(f"{quote(paths[0])}/*.txt")
    return "add documents, change dataset.validation_split, or set dataset.eval_samples to a number of them"


def corpus_paths(corpus: DatasetConfig | MixtureCorpus) -> tuple[str, ...]:
    """Return the paths and patterns of `dataset.path`; empty if it is null."""
    if corpus.path is None:
        return ()
    return (corpus.path,) if isinstance(corpus.path, str) else corpus.path


def is_remote(corpus: DatasetConfig | MixtureCorpus) -> bool:
    """Return whether the corpus is prepared data in an object store, such as s3://bucket/prepared."""
    paths = corpus_paths(corpus)
    return len(paths) == 1 and "://" in paths[0]


def is_on_hub(corpus: DatasetConfig | MixtureCorpus) -> bool:
    """Return whether the corpus is a Hub dataset, which is read with `datasets`."""
    return corpus.name is not None and not corpus.name.startswith(BUILTIN)


def corpus_label(corpus: DatasetConfig | MixtureCorpus) -> str:
    """Return the comma-separated paths of a corpus, or its name."""
    return ", ".join(corpus_paths(corpus)) or str(corpus.name)


def list_corpora(dataset: DatasetConfig) -> tuple[DatasetConfig, ...]:
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
    names = [Path(corpus_label(corpus)).name for corpus in dataset.mixture]
    return tuple(
        name if names.count(name) == 1 else f"{name} {number}" for number, name in enumerate(names, start=1)
    )


def token_shares(dataset: DatasetConfig) -> tuple[float, ...]:
    """Return each corpus's fraction of the training tokens; the fractions add up to 1."""
    if not dataset.mixture:
        return (1.0,)
    total = sum(corpus.weight for corpus in dataset.mixture)
    return tuple(corpus.weight / total for corpus in dataset.mixture)


def file_format_message(name: str) -> str:
    """Return the error message for a dataset.name that is a file format, such as `json`."""
    return f"dataset.name {name} is a file format of the datasets library, not a dataset"
