"""Keys and metrics of multiple choice in run files."""

# ruff: noqa: RUF009  (key() builds fields, which is what belongs in a class body)

from dataclasses import dataclass
from typing import Annotated, Literal

from neobert.schema_fields import Beta, ConfigSection, NonEmpty, ge, key, le
from neobert.tasks.keys import TaskKeys
from neobert.tasks.metric import ACCURACY, LOSS

MAX_CHOICES = 255


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MultipleChoiceConfig(ConfigSection):
    """Choices and the right one; dataset.text_column names the prompt."""

    choices_column: NonEmpty | None = key(
        None, "Column with a list of choices; null: choices, endings or options.", affects="data"
    )
    choice_columns: tuple[NonEmpty, ...] | None = key(
        None,
        "Columns with a choice each, such as [ending0, ending1]; the last ones of a row may be empty. "
        "null: choices_column.",
        affects="data",
    )
    start_column: NonEmpty | None = key(
        None, "Column of a text that begins each choice, as sent2 of SWAG; null: none.", affects="data"
    )
    label_column: NonEmpty = key(
        "label", "Column with the index of the right choice, from 0, or its name.", affects="data"
    )
    max_choices: Annotated[int, ge(2), le(MAX_CHOICES)] = key(
        4, "Maximum number of choices in a row; rows may have fewer.", affects="data"
    )
    pooling: Literal["avg", "cls", "max"] | None = key(
        None,
        "Pooling of the token vectors: mean, first token or maximum; null: the value in config.json, "
        "or avg for NeoBERT.",
        affects="model",
    )
    dropout: Beta = key(0.1, "Dropout before and after the head's dense layer.", affects="numerics")


MULTIPLE_CHOICE = TaskKeys(
    name="multiple_choice",
    package="neobert.tasks.multiple_choice",
    metrics=(LOSS, ACCURACY),
    section=MultipleChoiceConfig,
    about="Task multiple_choice: columns, choices and head.",
)
