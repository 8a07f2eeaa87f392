"""Row format of classification: the text, the second text if there are pairs, and the label."""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import CANDIDATES, TEXT, TEXT_SETTING, Field, RowFormat
from neobert.tasks.classification.section import CLASSIFICATION

PAIR, LABEL = "pair", "label"
LABEL_SETTING, PAIR_SETTING = "classification.label_column", "classification.pair_column"
PROBLEM_SETTING = "classification.problem"
TEXT_CANDIDATES = (*CANDIDATES, "sentence1")


def is_regression(config: RunConfig) -> bool:
    """Return whether labels are scores, and not classes."""
    return CLASSIFICATION.read_section(config).problem == "regression"


def num_labels(config: RunConfig) -> int:
    """Return the number of outputs of the classifier: one per class, or one for scores."""
    section = CLASSIFICATION.read_section(config)
    if is_regression(config):
        return 1
    return len(section.label_names) if section.label_names else section.num_labels


def row_format(config: RunConfig) -> RowFormat:
    """Return the fields of a row: text, second text if pair_column is set, and a class or score."""
    from neobert.tasks.classification.labels import (  # `lint` of other tasks does without
        ClassLabelParser,
        ScoreParser,
    )

    dataset, section = config.dataset, CLASSIFICATION.read_section(config)
    fields = [Field(TEXT, TEXT_SETTING, dataset.text_column, TEXT_CANDIDATES)]
    if section.pair_column is not None:
        fields.append(Field(PAIR, PAIR_SETTING, section.pair_column))
    read = (
        ScoreParser(LABEL_SETTING)
        if is_regression(config)
        else ClassLabelParser(LABEL_SETTING, num_labels(config), section.label_names or ())
    )
    fields.append(Field(LABEL, LABEL_SETTING, section.label_column, read=read, is_text=False))
    return RowFormat(tuple(fields), dataset.column_names, dataset.tsv_quotes)
