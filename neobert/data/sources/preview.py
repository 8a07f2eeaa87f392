"""Preview of local text: its files, and errors and copies in their first rows, found before a run starts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from neobert.config.corpora import corpus_label, corpus_paths, is_remote
from neobert.config.schema import DatasetConfig
from neobert.config.text_formats import is_plain, uncompressed_suffix
from neobert.data.sources.file_listing import is_saved_dataset, resolve_paths
from neobert.data.sources.file_selection import SkippedFiles, TextFile, select_files
from neobert.data.sources.rows import (
    Row,
    RowFormat,
    count_characters,
    text_digest,
    without_whitespace_and_case,
)
from neobert.data.sources.splits import (
    refuse_overlap,
    splits_to_read,
)
from neobert.data.sources.unreadable import unopened_error
from neobert.errors import ProjectError
from neobert.runfiles.prepared_parts import is_joined, parts_in

MAX_FILES, MAX_CHARACTERS, MIN_FILE_CHARACTERS = 64, 1 << 22, 1 << 16
"""Maximum number of files whose first rows are read, characters over all files, and minimum per file."""
SAMPLE_CHARACTERS = 1 << 17
NEEDS_PYARROW = ".zst"
CanOpen = Callable[[Path], bool]


@dataclass(frozen=True, slots=True)
class Preview:
    """The files of a text, and what their first rows show.

    Attributes:
        label: paths as configured.
        exists: whether each path exists.
        formats: number of files to read by suffix, of training and evaluation; empty for a saved dataset.
        num_eval_files: number of evaluation files among `formats`.
        size_bytes: total size of the files of training text; None for other datasets.
        is_plain: whether none of them is compressed or parquet, so that `size_bytes` is the text's size.
        left_out: files that are not read, the most frequent kind first.
        documents: number of training documents, if the files were read to their end; else None.
        eval_characters: characters of the evaluation text that were compared with the training text.
        shared_characters: evaluation characters in documents that are also training documents.
        sample: the first texts of each training file, together about `SAMPLE_CHARACTERS`.
        error: the first error of opening the files or reading their rows.
    """

    label: str
    exists: bool = True
    formats: dict[str, int] = field(default_factory=dict)
    num_eval_files: int = 0
    size_bytes: int | None = None
    is_plain: bool = True
    left_out: tuple[SkippedFiles, ...] = ()
    documents: int | None = None
    eval_characters: int = 0
    shared_characters: int = 0
    sample: tuple[str, ...] = ()
    error: ProjectError | None = None


def opens_without_pyarrow(path: Path) -> bool:
    """Return whether a file can be read with the standard library alone."""
    return uncompressed_suffix(path) != ".parquet" and path.suffix.lower() != NEEDS_PYARROW


def preview_local_text(
    dataset: DatasetConfig, rows: RowFormat, can_open: CanOpen = lambda _: True
) -> Preview:
    """Inspect the text of `dataset.path` as a run would read it; only files that `can_open` are opened."""
    preview = Preview(corpus_label(dataset))
    if is_remote(dataset):
        return replace(preview, formats={"object store": 1})
    try:
        places = resolve_paths(corpus_paths(dataset))
    except ProjectError as error:
        return replace(preview, exists=False, error=error)
    except OSError as error:
        return replace(preview, error=_unopened_error(error))
    try:
        if len(places) == 1 and is_saved_dataset(places[0].path):
            return preview
        if len(places) == 1 and is_joined(places[0].path):
            return replace(preview, formats={"prepared part": len(parts_in(places[0].path))})
        selection = select_files(places, rows, can_open)
        training, evaluation, others = group_by_use(selection.files, dataset)
        left_out = [*selection.left_out.values(), *others]
        files = [*training, *evaluation]
        preview = replace(
            preview,
            formats=dict(Counter(uncompressed_suffix(file.path) for file in files)),
            num_eval_files=len(evaluation),
            size_bytes=sum(file.path.stat().st_size for file in training),
            is_plain=all(is_plain(file.path) for file in training),
            left_out=tuple(sorted(left_out, key=lambda each: (-each.num_files, each.kind, each.reason))),
        )
        return _inspect_rows(preview, training, evaluation, rows, can_open)
    except ProjectError as error:
        return replace(preview, error=error)
    except OSError as error:
        return replace(preview, error=_unopened_error(error))


def _unopened_error(error: OSError) -> ProjectError:
    return unopened_error(Path(os.fsdecode(error.filename or "")), error)


def group_by_use(
    files: Sequence[TextFile], dataset: DatasetConfig
) -> tuple[list[TextFile], list[TextFile], list[SkippedFiles]]:
    """Return training files, evaluation files, and the splits that the run does not read.

    Raises DAT001 for a split that does not exist, DAT006 for slices that overlap.
    """
    train_slice, eval_slice = splits_to_read(dataset, tuple(dict.fromkeys(file.split for file in files)))
    training, evaluation = train_slice.name, eval_slice and eval_slice.name
    if eval_slice and training == evaluation and not (train_slice.needs_total or eval_slice.needs_total):
        labels = f"{dataset.eval_split} and {dataset.train_split}"
        refuse_overlap(train_slice.resolve(None), eval_slice.resolve(None), labels)
    used = (training, evaluation)
    unused = Counter(file.split for file in files if file.split not in used)
    examples = {file.split: file.name for file in reversed(files)}
    return (
        [file for file in files if file.split == training],
        [file for file in files if file.split == evaluation and evaluation != training],
        [SkippedFiles(f"{name} split", examples[name], num_files=count) for name, count in unused.items()],
    )


def _inspect_rows(
    preview: Preview, training: list[TextFile], evaluation: list[TextFile], rows: RowFormat, can_open: CanOpen
) -> Preview:
    """Return the preview with the counts, copies and sample of the first rows of the files."""
    max_characters = max(MIN_FILE_CHARACTERS, MAX_CHARACTERS // min(MAX_FILES, len(training)))
    seen = {
        text_digest(_row_text(row, rows)) for row in _first_rows(evaluation, rows, can_open, max_characters)
    }
    documents, copies, is_whole = 0, set[bytes](), len(training) <= MAX_FILES
    sample, max_sampled = list[str](), SAMPLE_CHARACTERS // max(1, min(len(training), MAX_FILES))
    for file in training[:MAX_FILES]:
        num_characters = 0
        for row in _first_rows([file], rows, can_open, max_characters):
            documents += 1
            if num_characters < max_sampled:
                texts = [row[each.name] for each in rows.fields if each.is_text]
                sample += [text[:max_sampled] for text in texts]
            num_characters += count_characters(row)
            if seen:
                copies |= seen & {text_digest(_row_text(row, rows))}
        is_whole = is_whole and can_open(file.path) and num_characters <= max_characters
    compared = (
        [_row_text(row, rows) for row in _first_rows(evaluation, rows, can_open, max_characters)]
        if copies
        else []
    )
    return replace(
        preview,
        documents=documents if is_whole else None,
        eval_characters=sum(map(len, compared)),
        shared_characters=sum(len(text) for text in compared if text_digest(text) in copies),
        sample=tuple(sample),
    )


def _first_rows(
    files: Sequence[TextFile], rows: RowFormat, can_open: CanOpen, max_characters: int
) -> Iterator[Row]:
    from neobert.data.sources.text_files import read_rows  # `lint` of text elsewhere does without

    for file in islice(files, MAX_FILES):
        num_characters = 0
        for row in read_rows(file.path, rows) if can_open(file.path) else ():
            yield row
            num_characters += count_characters(row)
            if num_characters > max_characters:
                break


def _row_text(row: Row, rows: RowFormat) -> str:
    return without_whitespace_and_case(rows.key(row))
