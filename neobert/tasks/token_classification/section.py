"""Keys and metrics of token classification in run files."""

# ruff: noqa: RUF009  (key() builds fields, which is what belongs in a class body)

from dataclasses import dataclass

from neobert.schema_fields import Beta, ConfigSection, NonEmpty, key
from neobert.tasks.keys import TaskKeys
from neobert.tasks.metric import ACCURACY, LOSS, Metric


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TokenClassificationConfig(ConfigSection):
    """Labels of words; dataset.text_column names the lists of words."""

    label_column: NonEmpty | None = key(
        None,
        "Column with a list of labels, one per word; null: tags, ner_tags or labels.",
        affects="data",
    )
    label_names: tuple[NonEmpty, ...] = key(
        (),
        "All labels, in the order of their numbers: [O, B-PER, I-PER]. The data holds names or numbers.",
        affects="model",
    )
    dropout: Beta = key(0.1, "Dropout before the classifier.", affects="numerics")


OF_ENTITIES = (
    Metric("eval/precision", is_higher_better=True, is_share=True),
    Metric("eval/recall", is_higher_better=True, is_share=True),
    Metric("eval/f1", is_higher_better=True),
)

TOKEN_CLASSIFICATION = TaskKeys(
    name="token_classification",
    package="neobert.tasks.token_classification",
    metrics=(LOSS, ACCURACY, *OF_ENTITIES),
    section=TokenClassificationConfig,
    about="Task token_classification: labels and head.",
)
