"""Config sections of the fine-tuning tasks and of the adapter."""

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
        "Names of the classes as spelled in the data, in order; null: classes are numbers.",
        affects="model",
    )
    pooling: Literal["avg", "cls", "max"] = key(
        "avg", "Pooling of the token vectors: mean, first token or maximum.", affects="model"
    )
    dropout: Beta = key(0.1, "Dropout before and after the head's dense layer.", affects="numerics")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenClassificationConfig:
    """Labels of words; dataset.text_column names the lists of words."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """A low-rank adapter (LoRA, arXiv:2106.09685); the weights of the encoder are frozen."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    type: Literal["lora"] | None = key(
        None, "lora: train low-rank factors and the head; null: train all weights.", affects="model"
    )
    r: PositiveInt = key(8, "Rank of the factors.", affects="model")
    alpha: PositiveInt = key(
        16, "Scale: the product of the factors is multiplied by alpha / r.", affects="model"
    )
    dropout: Beta = key(0.0, "Dropout probability on the input of each adapter.", affects="numerics")
    target_modules: tuple[NonEmpty, ...] | None = key(
        None,
        "Linear layers of the blocks that get an adapter, such as [qkv, wo]; null: all.",
        affects="model",
    )
