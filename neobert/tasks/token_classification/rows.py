"""Row format of token classification: the words of a text, and their labels."""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import TEXT, TEXT_SETTING, Field, RowFormat
from neobert.tasks.token_classification.section import TOKEN_CLASSIFICATION

WORD_COLUMNS, TAG_COLUMNS = ("tokens", "words"), ("tags", "ner_tags", "labels")
LABEL_SETTING = "token_classification.label_column"


def row_format(config: RunConfig) -> RowFormat:
    """Return the row format of a token classification run."""
    # `lint` of other tasks does without
    from neobert.tasks.token_classification.labels import (
        TAGS,
        TagListParser,
        WordListParser,
        require_label_per_word,
    )

    dataset, section = config.dataset, TOKEN_CLASSIFICATION.read_section(config)
    words = Field(TEXT, TEXT_SETTING, dataset.text_column, WORD_COLUMNS, WordListParser(TEXT_SETTING))
    read = TagListParser(LABEL_SETTING, section.label_names)
    tags = Field(TAGS, LABEL_SETTING, section.label_column, TAG_COLUMNS, read, is_text=False)
    return RowFormat((words, tags), dataset.column_names, dataset.tsv_quotes, require_label_per_word)
