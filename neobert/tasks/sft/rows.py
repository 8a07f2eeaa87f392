"""Row format of conversations: one field, a conversation of any form as JSON. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import TEXT, Field, Row, RowFormat, column_error
from neobert.tasks.sft.conversation import FORMS, OPTIONAL, ConversationForm, column_form, detect_form
from neobert.tasks.sft.section import SFT

SETTING = "sft.messages_column"
OF_TEXTS = "write task: causal, which trains on every token of a column of texts"


@dataclass(frozen=True, slots=True)
class ConversationRows(RowFormat):
    """Rows of tables of conversations; the columns decide the form.

    Attributes:
        messages_column: column of the messages; None: the column names determine the form.
    """

    messages_column: str | None = None

    @property
    def is_plain_text(self) -> bool:
        """Return False: files without columns hold no conversations."""
        return False

    def columns(self, available: Mapping[str, object], location: str) -> dict[str, str]:
        """Return the columns of the table's form, with the same names. Raises DAT011 for no known form."""
        form = self._table_form(available, location)
        read = (*form.columns, *(name for name in form.optional if name in available))
        return dict(zip(read, read, strict=True))

    def with_text_column(self, column: str | None) -> RowFormat:
        """Return a copy that reads the messages from `column`, as a corpus of a mixture names it."""
        return self if column is None else replace(self, messages_column=column)

    def with_columns(self, columns: Mapping[str, str]) -> RowFormat:  # noqa: ARG002  (they have the same names)
        """Return this format: its columns are not renamed."""
        return self

    def row(self, values: Mapping[str, Any], columns: Mapping[str, str], location: str) -> Row:
        """Return the conversation of a row as JSON. Raises DAT020 for an unreadable one."""
        return {TEXT: self._table_form(columns, location).conversation(values, location).to_json()}

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the rows, JSON-serializable."""
        column = {"messages_column": self.messages_column} if self.messages_column else {}
        return RowFormat.identity(self) | {"fields": "conversations", "optional": OPTIONAL} | column

    def _table_form(self, available: Mapping[str, object], location: str) -> ConversationForm:
        if self.messages_column is not None:
            if self.messages_column in available:
                return column_form(self.messages_column)
            raise column_error(f"there is no column {self.messages_column!r}", available, location, SETTING)
        form = detect_form(available)
        if form is None:
            forms = "; ".join(each.name for each in FORMS)
            error = column_error(
                f"the columns match no form of conversations ({forms})", available, location, SETTING
            )
            raise replace(error, hint=OF_TEXTS) if TEXT in available else error
        return form


def row_format(config: RunConfig) -> ConversationRows:
    """Return the format of conversations, read from messages_column or text_column if one is set."""
    column = SFT.read_section(config).messages_column or config.dataset.text_column
    field = Field(TEXT, SETTING, column)
    dataset = config.dataset
    return ConversationRows((field,), dataset.column_names, dataset.tsv_quotes, messages_column=column)
