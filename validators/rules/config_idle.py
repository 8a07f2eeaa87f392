"""Config rules: keys without effect, keys that the rehearsal did not read, and paths in run files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from neobert.config import RunConfig, all_keys, to_dict
from neobert.config.canonical import flatten
from neobert.config.corpora import is_on_hub
from neobert.config.keys import keys_affecting
from neobert.config.optimizers import OPTIMIZERS
from neobert.families.table import max_row_length, requested_kernels
from neobert.plan import Plan, pieces
from neobert.plurals import listed
from neobert.precision.libraries import LIBRARIES, enabled_conversions
from neobert.tasks.specs import spec_of
from profiles.inherit import is_shipped
from profiles.registry import ResolvedRun
from validators import cuda_graphs
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import early_end_reason, require_rehearsal
from validators.rule import CannotTellError, Violations, rehearsal_rule, rule

if TYPE_CHECKING:
    from validators.facts_rehearsal import RehearsalFacts


DEFAULTS = RunConfig()
# dataset.num_proc is unused because the data is already prepared.
READ_BEFORE = frozenset({"task", "dataset.num_proc"})
READ_ON_A_GPU = frozenset({"trainer.tf32"})
DECLARED = ("file", "override")
SCALES = "precompute_float8_dynamic_scale_for_fsdp"
ROW_LENGTH = "dataset.max_seq_length"


@rule("CFG013", "idle-key", severity=Severity.WARN, level=Level.STATIC)
def idle_key(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A key without effect, because of another key.

    ## What it does
    Reports `datacollator.pad_to_multiple_of` with packing, a packed-attention kernel in `model.attn_backend`
    without packing, `trainer.batch_size_warmup_steps` with one microbatch per step,
    `trainer.sequence_length_warmup_steps` if no document is longer than a piece or rows are padded,
    `trainer.sequence_length_warmup_length` without such steps, `trainer.gradient_checkpointing_every_n`
    without recomputation, `trainer.greater_is_better` without `trainer.metric_for_best_model`,
    `trainer.cuda_graphs` if the step is not one graph, `distributed.reshard_after_forward` without shards,
    `dataset.revision` if the data does not come from the Hub, keys of `optimizer` that `optimizer.name` does
    not use (unless all are in the file, as in the `resolved.json` of a run), `dataset.validation_split` if
    `dataset.eval_samples` is set, `scheduler.warmup_steps` and `decay_steps` next to a percentage, keys of
    `adapter` without `adapter.type`, a section of low precision without `enable`, a text of `filter_fqns`
    that is in the name of no layer, `model.block_counts` if rows have no more blocks than that, so every
    token attends to all of them, and keys that the task does not read. Values of a shipped profile are left
    out in runs that build on it.

    ## Why is this bad?
    The author of the key believes that it works, and interprets the results that way.

    ## Example
    ```yaml
    dataset:
      eval_samples: 256
      validation_split: 0.02
    ```

    ## Use instead
    ```yaml
    dataset:
      eval_samples: null
      validation_split: 0.02
    ```
    """
    unread = spec_of(run.config).unread_keys
    for path, reason, fix in _ineffective_keys(run.config):
        if path not in unread and not _is_from_shipped_profile(run, path):
            yield Violation(path, f"{path} has no effect: {reason}", f"{fix}, or set {path} to its default")
    for path, reason in unread.items():
        is_set = run.origin(path).kind != "default" and not _is_from_shipped_profile(run, path)
        if is_set and attrgetter(path)(run.config) != attrgetter(path)(DEFAULTS):
            message = f"{path} has no effect in task {run.config.task}: {reason}"
            yield Violation(path, message, f"remove {path}")
    yield from _keys_of_other_optimizers(run)
    yield from _disabled_section_violations(run)
    yield from _unmatched_filters(run.config, plan)
    yield from _unused_block_selection(run.config, plan)


def _keys_of_other_optimizers(run: ResolvedRun) -> Violations:
    name = run.config.optimizer.name
    paths = [key for key in all_keys() if key.startswith("optimizer.")]
    given = [path for path in paths if run.origin(path).kind in DECLARED]
    if given == paths:
        return
    for path in given:
        key = path.removeprefix("optimizer.")
        if key != "name" and key not in OPTIMIZERS[name].keys:
            reader = next(kind.name for kind in OPTIMIZERS.values() if key in kind.keys)
            message = f"{path} has no effect: optimizer.name is {name}"
            yield Violation(path, message, f"set optimizer.name to {reader}, or remove {path}")


def _disabled_section_violations(run: ResolvedRun) -> Violations:
    """Yield a violation for each section of low precision with other keys, in which `enable` is not set."""
    for name in LIBRARIES:
        enable = f"{name}.enable"
        keys = [key for key in all_keys() if key.startswith(f"{name}.")]
        written = [key for key in keys if run.origin(key).kind != "default"]
        if written and enable not in written:
            message = f"section {name} has no effect: {enable} is not set"
            yield Violation(written[0], message, f"set {enable} to true, or remove section {name}")


def _unmatched_filters(config: RunConfig, plan: Plan) -> Violations:
    names = [*plan.shape.linear_layers]
    for conversion in enabled_conversions(config):
        path, texts = conversion.key("filter_fqns"), conversion.section.filter_fqns
        matched = [text for text in texts if any(text in name for name in names)]
        idle = [text for text in texts if text not in matched]
        if names and idle:
            reason = f"the linear layers of the blocks are {listed(names, 9)}"
            message = f"{listed(idle)} in {path} has no effect: {reason}"
            yield Violation(path, message, f"set {path} to [{', '.join(matched)}]")


def _unused_block_selection(config: RunConfig, plan: Plan) -> Violations:
    """Yield a violation if native sparse attention selects every block of the longest row."""
    selected, longest = plan.shape.attention.selected, max_row_length(config)
    if selected is not None and longest <= (reach := selected.counts * selected.size):
        reason = f"a row of {longest:,} tokens has at most {selected.counts} blocks of {selected.size} tokens"
        message = f"model.block_counts has no effect: {reason}, so all are selected and attention is dense"
        yield Violation(ROW_LENGTH, message, f"raise {ROW_LENGTH} above {reach:,}")


def _is_from_shipped_profile(run: ResolvedRun, path: str) -> bool:
    """Return whether the value comes from a shipped profile and the run is not that profile alone."""
    origin, own = run.origin(path), run.profile is not None and run.source_file == run.profile.files[0]
    return not own and (origin.kind == "run" or (origin.kind == "profile" and is_shipped(origin.file)))


def _ineffective_keys(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """Yield the key, the reason and the edit for each key that has no effect because of another key."""
    collator, dataset, trainer = config.datacollator, config.dataset, config.trainer
    if collator.pad_to_multiple_of is not None and collator.pack_sequences:
        path = "datacollator.pad_to_multiple_of"
        yield path, "packed documents are not padded", "set datacollator.pack_sequences to false"
    if requested_kernels(config)[1] not in ("auto", "sdpa", "eager") and not collator.pack_sequences:
        path = "model.attn_backend"
        yield path, "padded rows use sdpa", "set datacollator.pack_sequences to true"
    if trainer.batch_size_warmup_steps and trainer.gradient_accumulation_steps == 1:
        path = "trainer.batch_size_warmup_steps"
        yield path, "a step has one microbatch", "raise trainer.gradient_accumulation_steps"
    yield from _ineffective_length_warmup_keys(config)
    if trainer.gradient_checkpointing_every_n > 1 and not trainer.gradient_checkpointing:
        path = "trainer.gradient_checkpointing_every_n"
        yield path, "trainer.gradient_checkpointing is false", "set trainer.gradient_checkpointing to true"
    if trainer.greater_is_better is not None and trainer.metric_for_best_model is None:
        path = "trainer.greater_is_better"
        yield path, "trainer.metric_for_best_model is not set", "set trainer.metric_for_best_model"
    if config.distributed.reshard_after_forward is not None and config.distributed.mode != "fsdp2":
        path = "distributed.reshard_after_forward"
        reason = f"distributed.mode {config.distributed.mode} shards nothing"
        yield path, reason, "set distributed.mode to fsdp2"
    obstacles = cuda_graphs.cuda_graph_obstacles(config) if trainer.cuda_graphs else ()
    yield from (("trainer.cuda_graphs", *obstacle) for obstacle in obstacles)
    yield from _ineffective_low_precision_keys(config)
    yield from _ineffective_step_keys(config)
    yield from _ineffective_adapter_keys(config)
    if dataset.revision is not None and not is_on_hub(dataset):
        yield "dataset.revision", "dataset.name is not a Hub dataset", "set dataset.name"
    if dataset.validation_split is not None and dataset.eval_samples is not None:
        path = "dataset.validation_split"
        yield path, "dataset.eval_samples is set and takes precedence", "set dataset.eval_samples to null"


def _ineffective_length_warmup_keys(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    trainer, longest = config.trainer, max_row_length(config)
    steps = pieces.num_piece_steps(trainer, trainer.max_steps)
    length = trainer.sequence_length_warmup_length
    path = pieces.STEPS if trainer.sequence_length_warmup_percent is None else pieces.PERCENT
    if path == pieces.PERCENT and trainer.sequence_length_warmup_steps:
        reason = f"{path} is set and takes precedence"
        yield pieces.STEPS, reason, f"set {path} to null"
    if not steps and length != DEFAULTS.trainer.sequence_length_warmup_length:
        yield pieces.LENGTH, f"{path} is 0", f"raise {path}"
    elif steps and not config.datacollator.pack_sequences:
        yield path, "padded rows are not split into pieces", "set datacollator.pack_sequences to true"
    elif steps and length >= longest:
        reason = f"no document is longer than {longest:,} tokens"
        yield path, reason, f"lower {pieces.LENGTH} below {longest:,}"


def _ineffective_low_precision_keys(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    for conversion in enabled_conversions(config):
        for name, reader in conversion.unread_keys():
            reason = f"{conversion.name} does not read {name}"
            yield conversion.key(name), reason, f"set {conversion.key('recipe')} to {reader}"
        if SCALES in conversion.recipe.reads and getattr(conversion.section, SCALES):
            gathers = conversion.key(conversion.library.gathers_key)
            if not conversion.gathers_low_precision:
                yield conversion.key(SCALES), f"{gathers} is false", f"set {gathers} to true"


def _ineffective_step_keys(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    for name in ("warmup", "decay"):
        percent, steps = (getattr(config.scheduler, f"{name}_{unit}") for unit in ("percent", "steps"))
        if percent is not None and steps:
            path, reason = f"scheduler.{name}_steps", f"scheduler.{name}_percent is set and takes precedence"
            yield path, reason, f"set scheduler.{name}_percent to null"


def _ineffective_adapter_keys(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    for name in ("r", "alpha", "dropout", "target_modules"):
        is_set = getattr(config.adapter, name) != getattr(DEFAULTS.adapter, name)
        if config.adapter.type is None and is_set:
            yield f"adapter.{name}", "adapter.type is null", "set adapter.type to lora"


@rehearsal_rule("CFG004", "unread-key", severity=Severity.FAIL)
def unread_key(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A key that is set, but that no code reads.

    ## What it does
    The rehearsal records each key that the program reads. Fails for a key of the run file or the command line
    that is set to another value than its default and was not read. Exempt are keys of the profile, which
    serves several kinds of runs, and keys that only the launcher and the rules read.

    ## Why is this bad?
    The author of the key believes that it works, and the run silently differs from its file.

    ## Example
    ```yaml
    optimizer:
      name: adamw
      muon_momentum: 0.9   # nothing reads it under adamw
    ```

    ## Use instead
    ```yaml
    optimizer:
      name: muon
      muon_momentum: 0.9
    ```
    """
    rehearsal = require_rehearsal(facts)
    if reason := early_end_reason(facts):
        raise CannotTellError(f"{reason}, so not all of the program ran")
    for key in _unread_keys(run, rehearsal):
        message = f"{key} is set, but nothing in the program reads it"
        yield Violation(key, message, f"remove {key}, or set the key that enables it")


@cache
def _default_values() -> dict[str, Any]:
    return flatten(to_dict(DEFAULTS))


def _unread_keys(run: ResolvedRun, rehearsal: RehearsalFacts) -> Iterator[str]:
    known = {*rehearsal.keys_read, *rehearsal.keys_replaced} | READ_BEFORE
    known |= keys_affecting("reporting", "limits", "start")  # the launcher and the rules read these
    if rehearsal.device != "cuda":
        known |= READ_ON_A_GPU
    values, defaults = flatten(to_dict(run.config)), _default_values()
    for key in all_keys():
        if key not in known and run.origin(key).kind in DECLARED and values[key] != defaults.get(key):
            yield key
