"""Sections of single tasks."""

# ruff: noqa: RUF009  (key() builds fields, which is what belongs in a class body)

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from neobert.config.schema.fields import STRICT, Beta, NonEmpty, PositiveInt, key


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationConfig:
    """Labels of texts and pairs of texts; dataset.text_column names the first text."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    problem: Literal["classes", "regression"] = key(
        "classes", "classes: one of several per text; regression: a score.", affects="model"
    )
    label_column: NonEmpty = key("label", "Column that holds the label.", affects="data")
    pair_column: NonEmpty | None = key(None, "Column of the second text; null: single texts.", affects="data")
    num_labels: PositiveInt = key(2, "Classes, numbered from 0 in the data.", affects="model")
    label_names: tuple[NonEmpty, ...] | None = key(
        None,
        "Names of the classes as the data spells them, in order; null: classes are numbers.",
        affects="model",
    )
    pooling: Literal["avg", "cls", "max"] = key(
        "avg", "Vector that is classified: mean, first token or maximum.", affects="model"
    )
    dropout: Beta = key(0.1, "Dropout before and after the head's dense layer.", affects="numerics")
