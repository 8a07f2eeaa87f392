"""Config section of the adapter, for tasks with labels."""

# ruff: noqa: RUF009  (key() builds fields, which is what belongs in a class body)

from dataclasses import dataclass
from typing import Literal

from neobert.schema_fields import Beta, ConfigSection, NonEmpty, PositiveInt, key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AdapterConfig(ConfigSection):
    """A low-rank adapter (LoRA, arXiv:2106.09685); the weights of the encoder are frozen."""

    type: Literal["lora"] | None = key(
        None,
        "lora: train low-rank factors, and the head of a task with labels; null: train all weights.",
        affects="model",
    )
    r: PositiveInt = key(8, "Rank of the factors.", affects="model")
    alpha: PositiveInt = key(
        16, "Scale: the product of the factors is multiplied by alpha / r.", affects="model"
    )
    dropout: Beta = key(0.0, "Dropout probability on the input of each adapter.", affects="numerics")
    target_modules: tuple[NonEmpty, ...] | None = key(
        None,
        "Linear layers of the blocks that get an adapter: [qkv, wo], or for BERT [query, value]; null: all.",
        affects="model",
    )
