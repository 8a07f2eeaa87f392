"""Predictions, embeddings and exports with a model folder or a run directory's checkpoint."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neobert.errors import ProjectError
from neobert_launch.command import report_of

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

TEXT, PAIR = "text", "pair"
Table = Any
"""A DataFrame, or an object with `to_pandas` (Arrow, polars, datasets); columns by name, or rows."""


def predict(
    folder: str | Path,
    texts: Iterable[str] | Iterable[tuple[str, str]] | Iterable[Sequence[str]] | Table,
    *,
    column: str | None = None,
    pair_column: str | None = None,
    every_class: bool = False,
    dtype: str | None = None,
) -> pd.DataFrame:
    """Return the rows with the columns `prediction` and `probability`, as `predict` does.

    Args:
        texts: texts (a list, an array or a column of a table), pairs of texts as tuples, lists of words, or
            a table with the columns that the model reads. A missing value is an empty text. The result has
            the index of a DataFrame or Series.
        every_class: add the probability of each class.
        dtype: "bf16" or "fp32"; None: bf16 on a GPU, fp32 on the CPU.

    Raises `ProjectError`, or `TypeError` if `texts` is one string or contains bytes.
    """
    import pandas as pd

    texts = _in_pandas(texts)
    rows, has_pairs = _rows(texts)
    options = _options(column=column, pair_column=PAIR if has_pairs else pair_column, dtype=dtype)
    with tempfile.TemporaryDirectory(prefix="neobert-launch-") as scratch:
        source, output = Path(scratch, "in.jsonl"), Path(scratch, "out.jsonl")
        _write(source, rows)
        flags = ["--every-class"] if every_class else []
        with _naming_texts(source):
            report_of("predict", str(folder), str(source), "--output", str(output), *options, *flags)
        with output.open(encoding="utf-8") as lines:  # str.splitlines would split at U+2028 in a text too
            predicted = [json.loads(line) for line in lines]
    index = None if isinstance(texts, list) else texts.index
    return pd.DataFrame(predicted, index)


def encode(
    folder: str | Path,
    texts: Iterable[str],
    *,
    pooling: str | None = None,
    max_length: int | None = None,
    dtype: str | None = None,
) -> NDArray[np.float32]:
    """Return the embeddings of texts, float32 [texts, hidden size].

    Raises `ProjectError`, or `TypeError` if `texts` is one string, or contains pairs or bytes.
    """
    import numpy as np

    rows, has_pairs = _rows(_in_pandas(texts))
    if has_pairs:
        raise TypeError("texts has pairs: pass single texts")
    options = _options(pooling=pooling, max_length=max_length, dtype=dtype)
    with tempfile.TemporaryDirectory(prefix="neobert-launch-") as scratch:
        source, output = Path(scratch, "in.jsonl"), Path(scratch, "out.npy")
        _write(source, rows)
        with _naming_texts(source):
            report_of("encode", str(folder), str(source), "--output", str(output), *options)
        embeddings: NDArray[np.float32] = np.load(output, allow_pickle=False)
    return embeddings


def export(folder: str | Path, output: str | Path, to: Sequence[str] = ("hf",)) -> dict[str, Any]:
    """Convert a checkpoint to formats of other libraries; return what was written. Raises `ProjectError`."""
    return report_of("export", str(folder), "--output", str(output), "--to", ",".join(to))


def _in_pandas(texts: Any) -> Any:
    """Return tables of other libraries, columns by name and rows as a DataFrame, and other texts as a list.

    Raises TypeError for a string, whose characters would each be a text.
    """
    import pandas as pd

    if isinstance(texts, str | bytes):
        raise TypeError("texts is one string: pass a list of texts, such as [text]")
    if hasattr(texts, "to_pandas"):
        texts = texts.to_pandas()
    if isinstance(texts, pd.DataFrame | pd.Series):
        return texts
    if not isinstance(texts, Mapping):
        texts = list(texts)
        if not texts or not isinstance(texts[0], Mapping):
            return texts
    return pd.DataFrame(texts)


@contextmanager
def _naming_texts(source: Path) -> Iterator[None]:
    """Raise errors about the file of the texts as errors about the argument `texts`."""
    try:
        yield
    except ProjectError as error:
        hint = error.hint.replace("--pair-column", "pair_column").replace("--column", "column")
        raise replace(error, place=error.place.replace(str(source), "texts"), hint=hint) from None


def _rows(texts: Any) -> tuple[Iterable[dict[str, Any]], bool]:
    """Return the rows of texts, pairs or a table, and whether they are pairs. Missing values are None."""
    import pandas as pd

    if isinstance(texts, pd.DataFrame):
        return texts.astype(object).where(texts.notna(), None).to_dict("records"), False
    column = pd.Series(list(texts), dtype=object)
    known = column.where(column.notna(), None).tolist()
    if known and isinstance(known[0], tuple):
        return ({TEXT: first, PAIR: second} for first, second in known), True
    return ({TEXT: text} for text in known), False


def _as_json(value: Any) -> object:
    """Return a value of numpy as a number or a list, and any other, such as a date, as text."""
    if isinstance(value, bytes):
        raise TypeError("texts has bytes: pass text, such as value.decode()")
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, default=_as_json) + "\n" for row in rows)


def _options(**values: object) -> list[str]:
    """Return options of the command line, without those that are None."""
    options: list[str] = []
    for name, value in values.items():
        if value is not None:
            options += [f"--{name.replace('_', '-')}", str(value)]
    return options
