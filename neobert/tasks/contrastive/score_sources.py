"""Search for the scores of pairs in the sources of a mixture, each of which may lack them."""

from __future__ import annotations

from neobert.config.corpora import corpora_of, is_remote, paths_of
from neobert.config.schema import RunConfig
from neobert.data.sources.file_listing import is_saved_dataset, places_of
from neobert.data.sources.file_selection import select_files
from neobert.data.sources.rows import column_error
from neobert.data.sources.text_files import read_table
from neobert.tasks.contrastive.rows import rows_of
from neobert.tasks.contrastive.score_cells import SCORE_SETTING
from neobert.tasks.contrastive.section import CONTRASTIVE


def require_scores(config: RunConfig) -> None:
    """Raise DAT011 if no file of a mixture has the column of the scores.

    A single source must have it, and a mixture may have it in any file. Sources other than files are not
    searched; rule TSK016 counts the scores of prepared data.
    """
    column, rows, found = CONTRASTIVE.of(config).score_column, rows_of(config), dict[str, object]()
    if column is None or not config.dataset.mixture:
        return
    for source in corpora_of(config.dataset):
        places = [] if source.path is None or is_remote(source) else places_of(paths_of(source))
        if not places or any(is_saved_dataset(place.path) for place in places):
            return
        for file in select_files(places, rows).files:
            _, values = next(read_table(file.path, rows), ("", {}))
            found |= values
            if column in found:
                return
    raise column_error(f"no source has a column {column!r}", found, "dataset.mixture", SCORE_SETTING)
