"""Tests of plug-ins before a launch: a function must be repeatable, or a resumed run would differ.

`python -m neobert.plugins.probes REQUEST.json` prints the report. The launcher runs it in two processes with
different string hashes, and compares the digests: the order of a set differs between them. Each `test_*`
function adds its measurements to the report, and raises `PluginError` for the first problem.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import random
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from neobert.config import from_dict
from neobert.config.schema import RunConfig
from neobert.data.store.prepare import prepare
from neobert.data.store.segment_store import Segments, SegmentStore
from neobert.errors import ProjectError
from neobert.json_program import serve
from neobert.plugins.dataset import SPLITS, PluggedRows, serialize_row
from neobert.plugins.hook_object import PluggedHook
from neobert.plugins.kinds import DATASET, HOOKS, KINDS, LOSS, MASKING, METRICS, PluginKind
from neobert.plugins.loading import Plugin, PluginError, load_plugins
from neobert.plugins.masking import PluggedMasking
from neobert.plugins.parameters import require_saved_state
from neobert.plugins.reference import PluginProblemError
from neobert.plugins.time_limit import limit_calls
from neobert.progress import LOG
from neobert.tasks.specs import reported_metrics, spec_of
from neobert.train import exit_process

Report = dict[str, Any]
LIMIT_S, LOADING_LIMIT_S = 120.0, 540.0
"""Time limits in seconds of a plug-in call, and of a call that loads a dataset."""
NUM_DOCUMENTS, NUM_ROWS, NUM_LABELS = 32, 64, 48
TOLERANCE = 1e-5
"""Relative difference allowed for another order of summation in fp32."""


def examine_plugins(request: Mapping[str, Any]) -> dict[str, Any]:
    """Test the plug-ins of a config; return failures, digests of results, and measurements.

    With `request["again"]`, in the second process, only masking and dataset plug-ins are tested.
    """
    config, is_restart = from_dict(request["config"]), request["again"]
    report: dict[str, Any] = {"failures": [], "digests": {}, "metrics": [], "masked_share": None}
    LOG.info("importing plug-ins (limit %g s)", LIMIT_S)
    with record_problems(report, "plugins"), limit_calls(LIMIT_S):
        for plugin in sorted(load_plugins(config.plugins), key=lambda each: ORDER.index(each.kind)):
            if not is_restart or plugin.kind in (MASKING, DATASET):
                limit_s = LOADING_LIMIT_S if plugin.kind is DATASET else LIMIT_S
                LOG.info("testing %s (%s, limit %g s per call)", plugin.key, plugin.label, limit_s)
                with record_problems(report, plugin.key), limit_calls(limit_s):
                    TESTS[plugin.kind](plugin, config, report)
    return report


@contextmanager
def record_problems(report: Report, key: str) -> Iterator[None]:
    """Catch a `ProjectError` in the `with` block and add it to the report's failures."""
    try:
        yield
    except ProjectError as error:
        report["failures"].append({"key": key, "message": error.located_message, "hint": error.hint})


@contextmanager
def require_unchanged_global_state(plugin: Plugin) -> Iterator[None]:
    """Raise `PluginError` if the `with` block changes the state of a global random generator."""
    before = _global_state()
    yield
    drawn = [name for name, state in _global_state().items() if before.get(name, state) != state]
    if drawn:
        message = f"{plugin.key} ({plugin.name}) draws from the global generator of {drawn[0]}"
        raise plugin.build_error(
            f"{message}: a resumed run would draw different numbers", REPEAT[plugin.kind]
        )


def _global_state() -> dict[str, str]:
    states = {"random": repr(random.getstate()), "numpy.random": repr(np.random.get_state(legacy=False))}
    if "torch" in sys.modules:
        states["torch"] = str(sys.modules["torch"].get_rng_state().numpy().tobytes())
    return states


REPEAT = {
    MASKING: "draw from the argument rng only",
    METRICS: "compute the metric from its arguments only",
    LOSS: "compute the loss of a label from its logits and label only",
    DATASET: "return the same rows in the same order: sort sets and listings, and seed a shuffle",
    HOOKS: "return from state_dict what load_state_dict restores",
}


def not_repeatable_error(plugin: Plugin, what: str) -> PluginError:
    """Build the error for results that differ between two calls; `what` is a predicate of the plug-in."""
    return plugin.build_error(f"{plugin.key} ({plugin.name}) {what}", REPEAT[plugin.kind])


def test_masking(plugin: Plugin, config: RunConfig, report: Report) -> None:
    """Mask the first documents twice, the second time in another order; report the share of targets.

    Raises `PluginError` if the targets differ or are invalid.
    """
    prepared = prepare(config)
    store = prepared.eval if not isinstance(prepared.train, SegmentStore) else prepared.train
    if store is None:
        return
    rule = PluggedMasking(plugin, prepared.tokenizer, config.datacollator)
    examples = np.arange(min(NUM_DOCUMENTS, len(store)))

    def masked(segments: Segments) -> dict[int, tuple[bytes, bytes]]:
        targets = rule.targets(segments, epoch=0, seed=config.seed)
        ends = np.cumsum(segments.lengths)
        return {
            int(sample): (targets.input_ids[start:end].tobytes(), targets.labels[start:end].tobytes())
            for sample, start, end in zip(segments.samples, ends - segments.lengths, ends, strict=True)
        }

    segments = store.gather(examples)
    with require_unchanged_global_state(plugin):
        first = masked(segments)
    if masked(segments) != first:
        raise not_repeatable_error(plugin, "masks different tokens when called again with the same generator")
    if masked(store.gather(examples[::-1].copy())) != first:
        raise not_repeatable_error(plugin, "masks different tokens when documents come in another order")
    labels = rule.targets(segments, epoch=0, seed=config.seed).labels
    is_target, is_maskable = labels >= 0, prepared.tokenizer.is_maskable[segments.ids]
    if (is_target & ~is_maskable).any():
        raise plugin.invalid_result_error("selects special tokens as targets")
    if (labels != segments.ids)[is_target].any():
        raise plugin.invalid_result_error("returned labels that are not the tokens of the text")
    report["masked_share"] = float(is_target.sum()) / max(1, int(is_maskable.sum()))
    report["digests"][plugin.key] = hashlib.sha256(repr(sorted(first.items())).encode()).hexdigest()


def test_dataset(plugin: Plugin, config: RunConfig, report: Report) -> None:
    """Read some rows twice, the second time from another call and in reverse order.

    Raises `PluginError` if splits, their lengths or rows differ.
    """
    rows, digests = spec_of(config).rows(config), []
    for split in SPLITS:
        first, second = (PluggedRows(plugin, split, plugin(split), rows) for _ in range(2))
        if (first.data is None) != (second.data is None):
            raise not_repeatable_error(plugin, f"returned the split {split} in only one of two calls")
        if first.data is None:
            continue
        if first.length != second.length:
            raise not_repeatable_error(
                plugin, f"returns {first.length:,} rows, then {second.length:,} ({split})"
            )
        chosen = {int(each) for each in np.linspace(0, first.length - 1, NUM_ROWS)} if first.length else set()
        kept = {index: serialize_row(first.row(index)) for index in sorted(chosen)}
        for index, row in reversed(kept.items()):
            if serialize_row(second.row(index)) != row:
                raise not_repeatable_error(
                    plugin, f"returns a different row {index + 1:,} when called again ({split})"
                )
        digests.append(first.identity)
    report["digests"][plugin.key] = repr(digests)


def test_metrics(plugin: Plugin, config: RunConfig, report: Report) -> None:
    """Score synthetic predictions twice, and in another order. Raises `PluginError` if the values differ."""
    from neobert.plugins.metrics import compute_plugin_metrics

    logits, labels = made_up_predictions(config)
    known = {each.name: None for each in reported_metrics(config)} | dict.fromkeys(report["metrics"])

    def scores(order: Any) -> dict[str, float | None]:
        return compute_plugin_metrics([plugin], logits[order], labels[order], known)

    forward = np.arange(len(labels))
    with require_unchanged_global_state(plugin):
        first = scores(forward)
    if not _are_close(scores(forward), first, 0.0):
        raise not_repeatable_error(plugin, "returns different values when called again")
    if not _are_close(scores(forward[::-1]), first, TOLERANCE):
        raise not_repeatable_error(
            plugin, "returns different values in another order, which depends on the number of ranks"
        )
    report["metrics"] += list(first)


def _are_close(left: Mapping[str, Any], right: Mapping[str, Any], tolerance: float) -> bool:
    return left.keys() == right.keys() and all(
        np.isclose(left[name], right[name], rtol=tolerance, atol=tolerance, equal_nan=True) for name in left
    )


def test_loss(plugin: Plugin, config: RunConfig, report: Report) -> None:  # noqa: ARG001
    """Compare losses of synthetic logits: twice, and summed over two halves. Check the gradient.

    Raises `PluginError` if the losses differ, or if loss or gradient are not finite, or the gradient is zero.
    """
    import torch

    from neobert.plugins.loss import PluggedLoss

    logits, labels = (torch.from_numpy(each) for each in made_up_predictions(config))
    loss = PluggedLoss(plugin)

    def summed(size: int) -> torch.Tensor:
        return loss(logits[:size].clone().requires_grad_(), labels[:size], size)

    half = len(labels) // 2
    with require_unchanged_global_state(plugin):
        first = summed(len(labels))
    if not bool(torch.isfinite(first)):
        raise plugin.invalid_result_error(f"returned a loss that is not finite: {float(first)}")
    if not torch.equal(summed(len(labels)), first):
        raise not_repeatable_error(plugin, "returns different losses when called again")
    inputs = logits.clone().requires_grad_()
    total = loss(inputs, labels, len(labels))
    if not total.requires_grad:
        raise plugin.invalid_result_error("returned a loss that has no gradient")
    total.backward()
    if inputs.grad is None or not bool(torch.isfinite(inputs.grad).all()) or not bool(inputs.grad.any()):
        raise plugin.invalid_result_error("returned a loss with a gradient that is zero or not finite")
    parts = summed(half) + loss(logits[half:].clone().requires_grad_(), labels[half:], len(labels) - half)
    if not torch.isclose(parts, first, rtol=TOLERANCE):
        raise not_repeatable_error(
            plugin, "depends on the other labels of a microbatch, whose size may change"
        )


def test_hooks(plugin: Plugin, config: RunConfig, report: Report) -> None:  # noqa: ARG001
    """Build the hook object, restore its state, and check that its class saves the attributes it changes.

    Events are not sent, since a hook may notify people. Raises `PluginError` if the state differs, or if an
    attribute is not saved.
    """
    hook = PluggedHook.from_plugin(plugin)
    state = hook.state()
    again = PluggedHook.from_plugin(plugin)
    again.load(state)
    if again.state() != state:
        raise not_repeatable_error(plugin, "has a different state after load_state_dict")
    try:
        kind = type(hook.target)
        lines, first_line = inspect.getsourcelines(kind)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        require_saved_state(tree.body[0], inspect.getsourcefile(kind) or kind.__name__, first_line)  # type: ignore[arg-type]
    except PluginProblemError as problem:
        # Its message begins with the file and line of the class, which may be in another file.
        raise plugin.build_error(problem.message, problem.hint, inspect.getsourcefile(kind) or "") from None
    except (OSError, TypeError):
        return  # a class without source


def made_up_predictions(config: RunConfig) -> tuple[Any, Any]:
    """Return random logits, float32 [M, L], and labels [M], shaped as for the run's task."""
    settings = spec_of(config).model_settings(config)
    generator = np.random.default_rng(0)
    num_labels = int(settings.get("num_labels", 2))
    logits = generator.standard_normal((NUM_LABELS, num_labels), dtype=np.float32)
    if settings.get("problem_type") == "regression":
        return logits, generator.random(NUM_LABELS, dtype=np.float32)
    return logits, np.arange(NUM_LABELS) % num_labels


ORDER = (DATASET, *(each for each in KINDS if each is not DATASET))
"""The rows come first: masking is tested on the text."""
TESTS: Mapping[PluginKind, Callable[[Plugin, RunConfig, Report], None]] = {
    MASKING: test_masking,
    METRICS: test_metrics,
    HOOKS: test_hooks,
    DATASET: test_dataset,
    LOSS: test_loss,
}


if __name__ == "__main__":
    exit_process(serve(examine_plugins, sys.argv[1:]))
