"""Plan as text, in readable units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.report.text_view import files_rows
from launcher.terminal import console
from launcher.terminal.fold import fold
from launcher.terminal.table import format_columns
from launcher.terminal.values import show_count, show_duration, show_mib, show_number
from neobert.config.corpora import corpus_label, list_corpora, token_shares
from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import DatasetConfig, OptimizerConfig
from neobert.families.table import requested_rows
from neobert.plan import Derived, Plan
from neobert.plan.remaining import Remaining, remaining_from
from neobert.plan.vocabulary import describe_training
from neobert.plurals import percent
from neobert.printable import printable
from neobert.tasks.specs import reported_metrics, spec_of
from profiles.registry import ResolvedRun
from validators.remaining import remaining_epochs

Row = tuple[str, str, str]


def plan_text(
    run: ResolvedRun, plan: Plan, left: Remaining, texts: Sequence[Mapping[str, Any]], *, verbose: bool
) -> str:
    """Format heading and rows of a plan and of its text; with `verbose`, also the reason for each row."""
    rows = list(_plan_rows(run, plan, left, texts))
    table = format_columns([[name, value] for name, value, _ in rows], indent="  ")
    if verbose:
        lines = [line for name, value, reason in rows for line in (f"  {name}: {value}", f"    {reason}")]
        table = fold("\n".join(map(printable, lines)), console.terminal_width())
    return f"{plan_head(run, plan)}\n{table}"


def plan_head(run: ResolvedRun, plan: Plan) -> str:
    """Return the heading: profile, devices and assumptions about them."""
    name = run.profile.name if run.profile else "no profile"
    what = f"{name} on {plan.world_size.value} x {plan.assumptions.device_name}, config {run.digest[:12]}"
    source = printable(plan.assumptions.source)
    return fold(f"{console.paint(printable(what), 'bold')}\n  {source}", console.terminal_width())


def _plan_rows(
    run: ResolvedRun, plan: Plan, left: Remaining, texts: Sequence[Mapping[str, Any]]
) -> Iterator[Row]:
    yield from _size_rows(run, plan, left, texts)
    yield from decision_rows(plan, left)
    yield _derived_row("checkpoint", show_mib(plan.checkpoint_mib.value), plan.checkpoint_mib)
    yield _derived_row("checkpoints kept", show_mib(plan.checkpoint_tree_mib.value), plan.checkpoint_tree_mib)
    yield from _rate_rows(run.config.optimizer, plan)


def _rate_rows(optimizer: OptimizerConfig, plan: Plan) -> Iterator[Row]:
    """Yield a row of learning rates at the start, peak, middle and end; with Muon, one per update rule."""
    if not OPTIMIZERS[optimizer.name].updates_matrices_by_muon:
        yield _rate_row("learning rate", optimizer.lr, optimizer.lr, plan)
        return
    muon = optimizer.muon_lr or optimizer.lr
    yield _rate_row("learning rate, Muon", muon, optimizer.lr, plan, " (matrices of the blocks)")
    yield _rate_row("learning rate, AdamW", optimizer.lr, optimizer.lr, plan, " (all other weights)")


def _rate_row(name: str, peak: float, planned_peak: float, plan: Plan, description: str = "") -> Row:
    """Return a row of rates; `planned_peak` is the peak of the plan's rates, which are proportional to it."""
    first, halfway, last = (
        show_number(rate.value * peak / planned_peak, 3)
        for rate in (plan.learning_rate_first, plan.learning_rate_middle, plan.learning_rate_last)
    )
    shown = f"{first} -> peak {show_number(peak, 3)} -> halfway {halfway} -> {last}{description}"
    return name, shown, plan.learning_rate_middle.reason


def _size_rows(
    run: ResolvedRun, plan: Plan, left: Remaining, texts: Sequence[Mapping[str, Any]]
) -> Iterator[Row]:
    metrics = ", ".join(metric.label for metric in reported_metrics(run.config))
    yield _derived_row("task", f"{plan.task.value}: {metrics}", plan.task)
    yield from spec_of(run.config).plan_rows(run.config)
    size, parameters = f"{plan.shape.num_layers} x {plan.shape.hidden_size}", plan.num_parameters
    yield _derived_row("model", f"{size}, {show_count(parameters.value)} parameters", parameters)
    tokenizer = plan.assumptions.tokenizer
    if tokenizer is not None and tokenizer.is_assumed and requested_rows(run.config) is None:
        yield _derived_row("vocabulary", f"assumed {tokenizer.num_tokens:,} tokens", plan.vocab_size)
    if run.config.tokenizer.path is None and run.config.tokenizer.name is None:
        yield _derived_row(
            "tokenizer", f"{describe_training(run.config.tokenizer)}, trained on the text", plan.vocab_size
        )
    each = show_count(plan.tokens_per_step.value)
    is_bound = run.config.trainer.max_epochs is not None and plan.assumptions.epoch is None
    sign = "of up to" if run.config.trainer.batch_size_warmup_steps else "x"
    steps = f"{'at most ' * is_bound}{_steps_text(plan, left)}{',' * bool(left.first_step)} {sign} {each}"
    tokens = f"{steps} = {show_count(left.tokens.value)} tokens"
    yield "work", tokens, f"{left.tokens.reason}; steps: {plan.max_steps.reason}"
    own = remaining_from(run.config, plan, plan.assumptions.start.continued_step)
    if (epochs := remaining_epochs(plan, own)) is not None:
        yield _derived_row("epochs", f"about {show_number(epochs, 3)}", plan.epochs)
    yield from _corpus_rows(run.config.dataset, left)
    yield from files_rows(texts)
    yield _derived_row(
        "tokens per parameter", show_number(plan.tokens_per_parameter.value, 3), plan.tokens_per_parameter
    )


def _steps_text(plan: Plan, left: Remaining) -> str:
    """Return the number of steps, for a resumed run as in `10 of 40 steps, from step 30`."""
    total = f"{plan.max_steps.value:,} steps"
    return f"{left.steps:,} of {total}, from step {left.first_step:,}" if left.first_step else total


def _corpus_rows(dataset: DatasetConfig, left: Remaining) -> Iterator[Row]:
    """Yield a row with the tokens of each corpus of a mixture."""
    for corpus, share in zip(list_corpora(dataset), token_shares(dataset), strict=True):
        if dataset.mixture:
            text = f"{percent(share)} = {show_count(share * left.tokens.value)} tokens"
            yield f"corpus {corpus_label(corpus)}", text, "weight of the corpus / sum of all weights"


def decision_rows(plan: Plan, left: Remaining, predicted: Plan | None = None) -> Iterator[Row]:
    """Yield the rows of duration, cost, work at risk, memory, kernels and predicted speed.

    Args:
        left: remaining part of the run, whose duration and cost are shown.
        predicted: plan without measurements, whose speed is shown; None shows the speed of `plan`.
    """
    steps = f" ({_steps_text(plan, left)})" if left.first_step else ""
    yield _derived_row("time to the end", show_duration(left.eta_s.value) + steps, left.eta_s)
    if left.cost.value is not None:
        yield _derived_row("cost", f"{left.cost.value:,.2f}", left.cost)
    else:
        reason = "hours x GPUs x guard.price_per_gpu_hour"
        yield "cost", "unknown (guard.price_per_gpu_hour is not set)", reason
    yield _derived_row("work at risk", show_duration(60 * plan.minutes_at_risk.value), plan.minutes_at_risk)
    yield _derived_row("memory per device", _memory_text(plan), plan.memory_mib)
    if plan.reshards.value is not None:
        gathered = "one block at a time" if plan.reshards.value else "all blocks at once"
        yield _derived_row("weights gathered", gathered, plan.reshards)
    yield _kernels_row(plan)
    reported = predicted or plan
    speed = f"{show_count(reported.tokens_per_second.value)} tokens/s, MFU {reported.mfu.value:.1%}"
    if plan.shape.attention.is_causal:
        speed += f" ({reported.mfu_whole_attention.value:.1%} counting full attention)"
    yield _derived_row("predicted speed", speed, reported.tokens_per_second)


def _kernels_row(plan: Plan) -> Row:
    reason = f"{plan.kernels.reason}; attention: {plan.attention.reason}"
    values = (plan.kernels.value, f"attention {plan.attention.value}", plan.low_precision.value)
    return "kernels", ", ".join(filter(None, values)), reason


def _memory_text(plan: Plan) -> str:
    device = plan.device_memory_mib.value
    if device is None:
        return show_mib(plan.memory_mib.value)
    taken = plan.memory_mib.value
    left = show_mib(max(0.0, device - taken))
    return f"{show_mib(taken)} of {show_mib(device)} ({taken / device:.0%}, headroom {left})"


def _derived_row(name: str, value: str, derived: Derived[Any]) -> Row:
    return name, value, derived.reason
