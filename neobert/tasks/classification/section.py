"""Keys and metrics of classification in run files."""

# ruff: noqa: RUF009  (key() builds fields, which is what belongs in a class body)

from dataclasses import dataclass
from typing import Literal

from neobert.schema_fields import Beta, ConfigSection, NonEmpty, PositiveInt, key
from neobert.tasks.keys import TaskKeys
from neobert.tasks.metric import ACCURACY, CORRELATIONS, LOSS, Metric


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ClassificationConfig(ConfigSection):
    """Labels of texts and pairs of texts; dataset.text_column names the first text."""

    problem: Literal["classes", "regression"] = key(
        "classes", "classes: one class per text; regression: one score per text.", affects="model"
    )
    label_column: NonEmpty = key("label", "Column that holds the label.", affects="data")
    pair_column: NonEmpty | None = key(None, "Column of the second text; null: single texts.", affects="data")
    num_labels: PositiveInt = key(2, "Number of classes; the data numbers them from 0.", affects="model")
    label_names: tuple[NonEmpty, ...] | None = key(
        None,
        "Names of the classes as spelled in the data, in order; null: classes are numbers.",
        affects="model",
    )
    pooling: Literal["avg", "cls", "max"] | None = key(
        None,
        "Pooling of the token vectors: mean, first token or maximum; null: the value in config.json, "
        "or avg for NeoBERT.",
        affects="model",
    )
    dropout: Beta = key(0.1, "Dropout before and after the head's dense layer.", affects="numerics")


OF_CLASSES = (
    ACCURACY,
    Metric("eval/f1", is_higher_better=True),
    Metric("eval/mcc", is_higher_better=True),
)

CLASSIFICATION = TaskKeys(
    name="classification",
    package="neobert.tasks.classification",
    metrics=(LOSS, *OF_CLASSES, *CORRELATIONS),
    section=ClassificationConfig,
    about="Task classification: labels and head.",
)
