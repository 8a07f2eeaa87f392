"""Options that set keys of a run file: weights, sizes, and the task of a short command, as overrides."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from launcher.commands.learning_rates import adapter_rate, rate_from_weights
from launcher.commands.new_batch import rows_per_step
from launcher.commands.selection import Selection
from launcher.commands.starting_weights import (
    CONTEXT,
    as_from_option_error,
    find_weights,
    with_rotary_base_for,
)
from launcher.io.files import require_source
from launcher.terminal import console
from neobert.config.errors import ConfigError
from neobert.config.overrides import format_text_override
from neobert.config.schema import RunConfig
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.families.table import max_row_length, model_shape
from neobert.hub_names import is_hub_name
from neobert.plurals import listed
from neobert.tasks.short_commands import SHORT_COMMANDS
from neobert.tasks.specs import SPECS, spec_of
from profiles.registry import ResolvedRun, resolve_run


def size_overrides(batch_size: int | None, steps: int | None) -> list[str]:
    """Return the overrides for `--batch-size` and `--steps`; none for options that are None."""
    given = {"trainer.per_device_train_batch_size": batch_size, "trainer.max_steps": steps}
    return [f"{key}={value}" for key, value in given.items() if value is not None]


def text_overrides(dataset: Path | None, tokenizer: Path | None, max_length: int | None) -> list[str]:
    """Return the overrides for `--dataset`, `--tokenizer` and `--max-length`; none for options that are None.

    Raises `ProjectError` for a path that does not exist and is not a name on the Hub.
    """
    given = [] if max_length is None else [f"dataset.max_seq_length={max_length}"]
    for section, place in (("dataset", dataset), ("tokenizer", tokenizer)):
        if place is not None:
            source = require_source(place, f"--{section}")
            key = "name" if is_hub_name(source) else "path"
            given.append(format_text_override(f"{section}.{key}", source))
    return given


class WeightsOptions(NamedTuple):
    """Values of --from, --text and --context; None for an option that was not given."""

    weights: str | None
    text: Path | None
    context: int | None


def choose_run(command: str, stated: Selection, source: WeightsOptions) -> Selection:
    """Return the run to train: the selected one, or the run file that --from and --text write.

    Keys for the weights and for the task of a short command are added as overrides. Raises `ProjectError` if
    no run is selected, and for options that contradict each other.
    """
    weights, text, context = source
    if text is not None or (weights is not None and not (stated.files or stated.profile)):
        from launcher.commands.short_run_file import find_run_file

        if stated.files or stated.profile:
            message = "--text writes a new run file, but a run file or a profile is given too"
            hint = "remove --text, or replace the run file or profile with --section.key VALUE"
            raise ProjectError("usage", message, hint, "", EXIT_USAGE)
        given = (*_only_task_override(command), *stated.overrides)
        stated = replace(stated, files=(find_run_file(weights, text, context, given),), overrides=given)
    elif context is not None:
        message = f"{CONTEXT} applies only to the run file that --from and --text write"
        hint = f"leave out {CONTEXT}, and set --dataset.max_seq_length {context}"
        raise ProjectError("usage", message, hint, "", EXIT_USAGE)
    elif weights is not None:
        stated = replace(stated, overrides=(*_weights_overrides(weights, stated), *stated.overrides))
    stated.require_any()  # --resume alone names no run
    short = SHORT_COMMANDS.get(command)
    run = _resolve_or_none(stated) if short else None
    if run is None or short is None:
        return stated
    return stated.with_overrides(_task_overrides(command, short.tasks, run))


def _weights_overrides(requested: str, stated: Selection) -> list[str]:
    """Return the overrides for a run that starts from weights: a folder or a name on the Hub.

    They include the learning rate unless the run sets it: the rate of a profile is for random weights. Raises
    `ProjectError` for weights that cannot be used.
    """
    try:
        weights = find_weights(requested)
    except ProjectError as error:
        raise as_from_option_error(error) from None
    given = weights.overrides
    run = _resolve_or_none(replace(stated, overrides=(*given, *stated.overrides)))
    if run is not None:
        given = with_rotary_base_for(weights, max_row_length(run.config)).overrides
    if run is None or run.origin("optimizer.lr").kind in ("file", "override"):
        return given
    shape, tokens = model_shape(run.config, 1), rows_per_step(run.config.trainer) * max_row_length(run.config)
    rate = rate_from_weights(spec_of(run.config), weights.folder, shape, tokens)
    rate = rate if run.config.adapter.type is None else adapter_rate(rate)
    estimate = f"optimizer.lr is {rate:g}, an estimate for weights of width {shape.hidden_size:,}"
    console.log(f"note: {estimate}; set another with --optimizer.lr RATE")
    return [*given, f"optimizer.lr={rate:g}"]


def _resolve_or_none(stated: Selection) -> ResolvedRun | None:
    """Return the resolved run, or None if it is invalid, which the command reports later."""
    with suppress(ConfigError):
        return resolve_run(stated.profile, stated.files, stated.overrides)
    return None


def _task_overrides(command: str, tasks: Sequence[str], run: ResolvedRun) -> list[str]:
    """Return the task of a short command as an override, unless the run sets a task.

    Raises `ProjectError` if the run sets a task that the command does not train.
    """
    task = run.config.task
    if run.origin("task").kind == "default":
        return [format_text_override("task", _suitable_task(run.config, tasks))]
    if task not in tasks:
        message = f"task is {task}, but `{command}` trains only {listed(tasks)}"
        raise ProjectError("usage", message, "run the same command with `train`", "task", EXIT_USAGE)
    return []


def _only_task_override(command: str) -> list[str]:
    """Return the task of a short command as an override if the command has only one task."""
    short = SHORT_COMMANDS.get(command)
    return [format_text_override("task", short.tasks[0])] if short and len(short.tasks) == 1 else []


def _suitable_task(config: RunConfig, tasks: Sequence[str]) -> str:
    """Return the first task that suits the model's attention, causal or bidirectional, or else the first."""
    is_causal = model_shape(config, 1).attention.is_causal
    fitting = (name for name in tasks if (SPECS[name].predicts == "next") == is_causal)
    return next(fitting, tasks[0])
