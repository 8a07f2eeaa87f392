"""Overlap of the splits and sources of a text, counted while it is prepared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import Row, RowFormat
from neobert.data.store.shared_texts import SharedTexts
from neobert.data.store.text_copies import Copies
from neobert.tasks.specs import spec_of


@dataclass(frozen=True, slots=True)
class Overlap:
    """Counters of rows that are in both splits, and of texts that several pairs have; None without pairs."""

    copies: Copies
    shared: SharedTexts | None

    @classmethod
    def of(cls, config: RunConfig, rows: RowFormat) -> Overlap:
        """Return the counters for the rows of a run."""
        names = compared_fields(config, rows)
        return cls(Copies(rows), SharedTexts(names) if names else None)

    def follow(self, split: str, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows of a source unchanged. Read the evaluation split to its end before the others."""
        followed = self.copies.follow(split, rows)
        return followed if self.shared is None else self.shared.follow(split, followed)

    def add_to(self, splits: Mapping[str, dict[str, Any]]) -> None:
        """Add the counts to those of the splits, if the training text is one of them."""
        if "train" not in splits:
            return
        train, evaluation = splits["train"]["counts"], splits.get("eval", {}).get("counts")
        if evaluation is not None:
            train["copies_of_evaluation"] = self.copies.in_training
            evaluation["copies_in_training"] = self.copies.of_evaluation
        if self.shared is not None:
            train["texts_of_other_sources"], train["texts_compared"] = self.shared.of_sources
            if evaluation is not None:
                evaluation["texts_in_training"] = self.shared.of_evaluation


def compared_fields(config: RunConfig, rows: RowFormat) -> list[str]:
    """Return the fields whose texts are compared with those of other rows; empty for tasks without pairs."""
    is_of_pairs = spec_of(config).predicts == "pairs"
    return [field.name for field in rows.fields if field.is_text] if is_of_pairs else []
