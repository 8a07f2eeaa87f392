"""Columns of a table of labelled rows, read to infer the settings of a run file."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from neobert.config.text_formats import TEXT, hint_for_plain_text, text_format, uncompressed_suffix
from neobert.data.sources.rows import RowFormat, looks_like_value
from neobert.data.sources.text_files import ALL_COLUMNS
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.plurals import counted, listed
from neobert.printable import printable
from neobert.tasks.conversation_pieces import TurnSize
from neobert.tasks.table_files import read_rows, training_tables

MAX_ROWS, MAX_CHARACTERS = 100_000, 1 << 26
SAMPLE_TEXTS, SAMPLE_CHARACTERS = 1 << 10, 1 << 15
MAX_COLUMNS = 128
"""Maximum number of columns, unless the first row has more."""
MAX_CLASSES, MAX_NUMBERED = 500, 20
"""Maximum number of distinct labels in a column; above the second number, distinct numbers are scores."""
MAX_REPEATED = 10_000
"""Maximum number of classes in a column whose values repeat."""
NO_TEXT = hash("")
"""Hash of a missing or empty value."""
LABEL_TYPES = (str, int, float, Decimal)
SPACE = re.compile(r"\S\s+\S")
Keys = dict[str, Any]
Named = Mapping[str, str]
"""Columns that the user names, by config key, such as classification.label_column."""
TEXT_SETTING = "dataset.text_column"
QUESTIONS = ("prompt", "question", "query", "instruction", "input", "user")
ANSWERS = ("completion", "response", "answer", "output", "assistant")
NEXT_TO_ANSWERS = {"context": "input", "input": "input", "system_prompt": "system", "system": "system"}
"""Columns that belong to a question and its answer, with their names in a table of conversations."""
NONE_NAMED: Named = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LabelledTable:
    """Settings of a run file, inferred from a table.

    Attributes:
        keys: config keys and values to add to the run file; empty for the default column names.
        notes: the same information as text, one line per note.
        lengths: size of the text or texts of each row that was read, in bytes of UTF-8.
        sample: some of the texts.
        conversations: sizes in bytes of the turns of each row; empty unless the rows are conversations.
        first_rows: number of rows that were read, if there are more; None if all were read.
    """

    keys: Keys
    notes: tuple[str, ...]
    lengths: tuple[int, ...]
    sample: tuple[str, ...]
    conversations: tuple[tuple[TurnSize, ...], ...] = ()
    first_rows: int | None = None


@dataclass(slots=True)
class Column:
    """The values of one column.

    Attributes:
        lengths: size of each value as text.
        digests: hash of each value as text, different in each process.
        values: number of rows by value that may be a label, up to one more than `MAX_REPEATED` values.
        num_texts: number of strings with whitespace inside.
        elements: counts of the elements of lists, by value; empty if no value is a list.
        max_elements: length of the longest list.
        max_different: length of the longest list without empty and repeated elements.
        num_empty: number of values that are null, empty text or an empty list.
        sample: every `stride`-th value as text, at most `SAMPLE_TEXTS`.
        sample_characters: length of all texts in `sample`.
    """

    name: str
    lengths: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)
    values: Counter[str] = field(default_factory=Counter)
    num_texts: int = 0
    elements: Counter[str | int] = field(default_factory=Counter)
    max_elements: int = 0
    max_different: int = 0
    num_empty: int = 0
    sample: list[str] = field(default_factory=list)
    sample_characters: int = 0
    stride: int = 1

    def add(self, value: object) -> None:
        """Add a value. An object with the key `text`, or a list of such objects, is a list of texts."""
        value = _unwrap_text_objects(value)
        if isinstance(value, list | tuple):
            self.elements.update(each for each in value if isinstance(each, str | int))
            self.max_elements = max(self.max_elements, len(value))
            different = {str(each) for each in value if each is not None and str(each).strip()}
            self.max_different = max(self.max_different, len(different))
            text = " ".join(map(str, value))
        else:
            text = "" if value is None else str(value).strip()
            self.num_texts += isinstance(value, str) and SPACE.search(text) is not None
            is_label = isinstance(value, LABEL_TYPES) and bool(text)
            if is_label and (text in self.values or len(self.values) <= MAX_REPEATED):
                self.values[text] += 1
        self.num_empty += not text
        if len(self.lengths) % self.stride == 0:
            self.sample.append(text[:SAMPLE_CHARACTERS])
            self.sample_characters += len(self.sample[-1])
            while len(self.sample) > 1 and self._is_large():
                self.sample, self.stride = self.sample[::2], 2 * self.stride
                self.sample_characters = sum(map(len, self.sample))
        self.lengths.append(len(text.encode("utf-8", "replace")))
        self.digests.append(hash(text))

    def _is_large(self) -> bool:
        return len(self.sample) > SAMPLE_TEXTS or self.sample_characters > SAMPLE_CHARACTERS

    @property
    def numbers(self) -> list[float]:
        """The different values as numbers, without NaN; empty if one of them is not a number."""
        try:
            numbers = [float(value) for value in self.values]
        except ValueError:
            return []
        return [number for number in numbers if not math.isnan(number)]

    @property
    def is_list(self) -> bool:
        """True if values are lists."""
        return self.max_elements > 0

    @property
    def is_text(self) -> bool:
        """True if more than half of the values are strings with whitespace inside."""
        return 2 * self.num_texts > len(self.lengths)

    @property
    def has_fractions(self) -> bool:
        """True if all values are numbers, and one of them is not whole."""
        return any(number != int(number) for number in self.numbers if abs(number) < 2**53)

    @property
    def is_scored(self) -> bool:
        """True if the values are fractions, or more than `MAX_NUMBERED` numbers that repeat."""
        return self.has_fractions or (self.is_label and len(self.numbers) > MAX_NUMBERED)

    @property
    def is_label(self) -> bool:
        """True if there are 2 to `MAX_CLASSES` distinct values, each twice or more on average."""
        return len(self.values) <= MAX_CLASSES and self.has_repeats

    @property
    def has_repeats(self) -> bool:
        """True if there are 2 to `MAX_REPEATED` distinct values, each twice or more on average."""
        return 2 <= len(self.values) <= MAX_REPEATED and 2 * len(self.values) <= sum(self.values.values())


def _unwrap_text_objects(value: object) -> object:
    """Return the texts of an object with the key `text`, or of a list of such objects; else the value."""
    if isinstance(value, Mapping) and "text" in value:
        return value["text"] if isinstance(value["text"], list | tuple) else [value["text"]]
    if isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
        return [each.get("text") for each in value]
    return value


def sample_texts(*columns: Column) -> tuple[str, ...]:
    """Return the sampled texts of all columns, column by column."""
    return tuple(text for column in columns for text in column.sample)


def read_columns(text: Path) -> tuple[list[Column], int | None, Keys]:
    """Return the columns of the training rows, `LabelledTable.first_rows`, and config keys to read the rows.

    The last result is cached. Raises `ProjectError` for plain text or a table without rows or header.
    """
    files = training_tables(text)
    for file in files:
        if text_format(file) == TEXT:
            raise unclear_table_error(
                file, "the file is plain text without labels", hint_for_plain_text(file)
            )
    columns, first_rows, keys = _read_columns_cached(
        tuple(files), tuple(file.stat().st_mtime_ns for file in files)
    )
    return columns, first_rows, dict(keys)


@lru_cache(maxsize=1)
def _read_columns_cached(
    files: Sequence[Path], _changed_ns: tuple[int, ...]
) -> tuple[list[Column], int | None, Keys]:
    if all(uncompressed_suffix(file) != ".tsv" for file in files):
        return *_read_first_rows(files, ALL_COLUMNS), {}
    return _read_unquoted(files) or (*_read_first_rows(files, ALL_COLUMNS), {})


def _read_unquoted(files: Sequence[Path]) -> tuple[list[Column], int | None, Keys] | None:
    """Read TSV files whose quotes are characters of the text; None if their quotes enclose fields."""
    columns: list[Column] = []
    with suppress(ProjectError):
        columns, first_rows = _read_first_rows(files, replace(ALL_COLUMNS, tsv_quotes=False))
        quoted, _ = _read_first_rows(files, ALL_COLUMNS)
        if len(quoted[0].lengths) == len(columns[0].lengths):  # no quote has swallowed a line end
            return None
    return (columns, first_rows, {"dataset.tsv_quotes": False}) if columns else None


def _read_first_rows(files: Sequence[Path], rows: RowFormat) -> tuple[list[Column], int | None]:
    """Return the columns of the first rows, and the number of these rows, or None if they are all rows.

    Raises `ProjectError` if a file has no rows or header, or cannot be read.
    """
    columns: dict[str, Column] = {}
    num_characters = 0
    for num_rows, (location, values) in enumerate(
        chain.from_iterable(read_rows(file, rows) for file in files)
    ):
        if num_rows >= MAX_ROWS or num_characters > MAX_CHARACTERS:
            return list(columns.values()), num_rows
        if not columns:
            _require_header(values, location)
        for name in values:  # a row may lack columns, and an object of JSON keys that later ones have
            if name not in columns and (num_rows == 0 or len(columns) < MAX_COLUMNS):
                columns[name] = Column(name, [0] * num_rows, [NO_TEXT] * num_rows, num_empty=num_rows)
        for name, column in columns.items():
            column.add(values.get(name))
            num_characters += column.lengths[-1]
    if not columns:
        raise unclear_table_error(files[0], "the table has no rows", "pass a table with a row per text")
    return list(columns.values()), None


def _require_header(values: Mapping[str, Any], location: str) -> None:
    """Raise `ProjectError` if column names look like values, as in a table without a header."""
    # pandas writes its index as a first column without a name, spreadsheets write empty last columns.
    first = next(iter(values), "")
    names = [name for name in values if name.strip() or (name != first and values[name])]
    looks_wrong = any(not name.strip() or looks_like_value(name) for name in names)
    if values and (looks_wrong or not names):
        file = Path(location.rpartition(":")[0] or location)
        message = f"column names look like values: {listed([*map(quoted, values)], 5)}"
        hint = "add a header line with the names of the columns, such as text and label"
        raise unclear_table_error(file, message, hint)


def stated_column(columns: Mapping[str, Column], key: str, named: Named, text: Path) -> Column | None:
    """Return the column that the user names for a key, or None. Raises `ProjectError` if it is missing."""
    if (name := named.get(key)) is None:
        return None
    if name in columns:
        return columns[name]
    message = f"the table has no column {quoted(name)} (columns: {listed([*map(quoted, columns)], 30)})"
    raise unclear_table_error(text, message, f"set {key} to one of the columns")


def known_columns(columns: Mapping[str, Column], names: Sequence[str]) -> list[Column]:
    """Return the columns that have one of these names, in upper or lower case, in the order of `names`."""
    by_name = {name.lower(): each for name, each in reversed([*columns.items()])}
    return [columns.get(name) or by_name[name.lower()] for name in names if name.lower() in by_name]


def named_column(
    columns: Mapping[str, Column], names: Sequence[str], text: Path, content: str, key: str, named: Named
) -> Column:
    """Return the column that the user names for `key`, else the first of `names` that the table has.

    Raises `ProjectError` without either.
    """
    if (stated := stated_column(columns, key, named, text)) is not None:
        return stated
    if found := known_columns(columns, names):
        return found[0]
    others = f"columns: {listed([*map(quoted, columns)], 8)}" if columns else "the table has no other column"
    message = f"no column of {content} found ({others})"
    hint = f"name the column of {content}: --{key} NAME" if columns else f"add a column of {content}"
    raise unclear_table_error(text, message, hint)


def renamed_answers(columns: Iterable[str]) -> str:
    """Return the columns of a question, its answer, context and system prompt, found by their names, and
    their names in a table of conversations, such as "'q' and 'a' to prompt and completion"; '' without a
    question or an answer, or if they have these names.
    """
    names = {name.lower(): name for name in columns}
    pair = [next((names[name] for name in known if name in names), "") for known in (QUESTIONS, ANSWERS)]
    if not all(pair):
        return ""
    others = {
        form: names[name]
        for name, form in NEXT_TO_ANSWERS.items()  # the last of two with the same new name
        if name in names and names[name] != pair[0]
    }
    new = ("instruction", "output") if "input" in others else ("prompt", "completion")
    renamed = [*zip(pair, new, strict=True), *((name, form) for form, name in others.items())]
    changed = [each for each in renamed if each[0] != each[1]]
    if not changed:
        return ""
    old = " and ".join(quoted(name) for name, _ in changed)
    return f"{old} to {' and '.join(form for _, form in changed)}"


def column_keys(columns: Mapping[str, Column], names: Sequence[str], column: Column, setting: str) -> Keys:
    """Return `setting` with the column's name; empty if the row format selects the column without it."""
    is_alone = [name for name in names if name in columns] == [column.name]
    return {} if is_alone else {setting: column.name}


def note_on_rows(table: LabelledTable) -> Iterator[str]:
    """Yield a note on the number of rows that were read, unless all were."""
    if table.first_rows is not None:
        difference = "be longer" if table.conversations else "have other labels"
        yield f"only the first {counted(table.first_rows, 'row')} were read: later ones may {difference}"


def too_many_labels_error(column: Column, text: Path, key: str) -> ProjectError:
    """Return the error for a column with too many labels; `key` is the config key of the label column."""
    most = MAX_REPEATED if len(column.values) > MAX_REPEATED else MAX_CLASSES
    message = f"column {quoted(column.name)} has more than {most:,} different labels"
    return unclear_table_error(text, message, f"name another column of labels: --{key} NAME")


def listed_names(names: Sequence[str]) -> str:
    """Return up to ten label names as text, and the number of further ones."""
    return printable(listed(names, 10))


def quoted(name: str) -> str:
    """Return a column name in quotes, without control characters."""
    return repr(printable(name))


def unclear_table_error(location: Path, message: str, hint: str) -> ProjectError:
    """Return the error for a table whose use is not clear from its columns."""
    return ProjectError("unclear-table", message, hint, str(location), EXIT_USAGE)
