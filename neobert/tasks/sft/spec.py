"""Supervised fine-tuning on conversations, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import RowFormat
from neobert.families.shape import ModelShape
from neobert.plurals import percent
from neobert.tasks.sft.section import SFT, TYPICAL_SHARE
from neobert.tasks.spec import Contradiction, Head, TaskSpec, next_token_head, reports_token_metric


def contradictions(config: RunConfig) -> Iterator[Contradiction]:
    """Yield a contradiction if template_date is not an ISO date."""
    given = SFT.read_section(config).template_date
    try:
        date.fromisoformat(given or "2024-07-26")
    except ValueError:
        message = f"template_date {given!r} is not a date (YYYY-MM-DD)"
        yield Contradiction("sft.template_date", message, "set sft.template_date to YYYY-MM-DD")


def supervised_head(config: RunConfig, shape: ModelShape) -> Head:
    """Return the head size: vocabulary logits for supervised tokens, whose share is assumed."""
    share = 1.0 if SFT.read_section(config).supervise == "everything" else TYPICAL_SHARE
    return next_token_head(config, shape)._replace(
        scored_share=share, scored_positions=f"supervised tokens ({percent(share)})"
    )


def rows(config: RunConfig) -> RowFormat:
    """Return the row format of conversations."""
    from neobert.tasks.sft.rows import row_format  # `lint` of other tasks does without

    return row_format(config)


SPEC = TaskSpec(
    keys=SFT,
    summary="supervised fine-tuning on conversations",
    auto_class="AutoModelForCausalLM",
    predicts="next",
    stores_targets=True,
    head=supervised_head,
    rows=rows,
    contradictions=contradictions,
    reports=reports_token_metric,
)
