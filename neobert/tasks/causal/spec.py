"""Pretraining of causal models, without torch."""

from __future__ import annotations

from neobert.data.sources.rows import text_rows
from neobert.tasks.causal.section import CAUSAL
from neobert.tasks.spec import TaskSpec, next_token_head, reports_token_metric

SPEC = TaskSpec(
    keys=CAUSAL,
    summary="pretraining of a causal model",
    auto_class="AutoModelForCausalLM",
    predicts="next",
    roles=("eos_token",),
    head=next_token_head,
    rows=lambda config: text_rows(config.dataset),
    reports=reports_token_metric,
)
