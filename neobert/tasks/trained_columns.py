"""Columns of pairs that the run of a model reads, for other tables of pairs. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from neobert.config import from_dict
from neobert.data.sources.rows import RowFormat
from neobert.data.sources.text_files import read_table
from neobert.runfiles.model_folder import read_run_config
from neobert.tasks.contrastive.rows import row_format
from neobert.tasks.contrastive.section import CONTRASTIVE


def trained_columns(folder: Path, table: Path) -> dict[str, str]:
    """Return, by field, the columns of the model's run that the table has too; empty without such a run.

    Raises DAT001 for a malformed table.
    """
    config = from_dict(read_run_config(folder) or {})
    if config.task != CONTRASTIVE.name:
        return {}
    rows = row_format(config)
    fields = rows.fields if rows.score is None else (*rows.fields, rows.score)
    first = next((values for _, values in read_table(table, RowFormat((), tsv_quotes=False))), {})
    return {
        field.name: field.column for field in fields if field.column is not None and field.column in first
    }
