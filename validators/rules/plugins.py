"""Plug-in rules: user-defined functions that a run file names."""

from __future__ import annotations

from neobert.plan import Plan
from neobert.tasks.specs import known_metrics, spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, require_group, rule
from validators.rules.checkpoint_resume import why_not_resumed
from validators.rules.config_loading import loader_rule

METRIC, DIRECTION = "trainer.metric_for_best_model", "trainer.greater_is_better"
SHARE = "datacollator.mlm_probability"
MAX_TARGETS = 1.25
"""Maximum targets that a masking function may select, relative to `datacollator.mlm_probability`. Memory is
planned for 6 standard deviations above its mean: 1.25 times the mean for 2,300 tokens at a rate of 0.2."""
SCORED = ("AutoModelForSequenceClassification", "AutoModelForTokenClassification")
HEADS = {
    "masking": ("AutoModelForMaskedLM",),
    "loss": SCORED,
    "metrics": (*SCORED, "AutoModelForMultipleChoice"),
}
"""By kind of plug-in, the heads whose targets, logits or labels it can read or replace."""


def why_no_plugins(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why rules about plug-ins do not apply; empty if the run has one."""
    return "" if run.config.plugins.is_used else "the run has no plug-ins"


@loader_rule("PLG001", "unusable-plugin")
def unusable_plugin(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A plug-in whose file, function or parameters do not exist as named.

    ## What it does
    Reads the files of plug-ins without running them. Rejects a file, package, entry point or function that
    does not exist, a syntax error, a function with the wrong parameters, a hook that changes its attributes
    and has no `state_dict`, a helper that an installed module of the same name hides, and a plug-in that a
    profile names: code is named in a run file or an argument.

    ## Why is this bad?
    The trainer would fail when it imports or first calls the function, after the queue. A hook without a
    state begins at zero again after each resume.

    ## Example
    ```yaml
    plugins:
      masking: masking.py:spam   # the function is spans
    ```

    ## Use instead
    ```yaml
    plugins:
      masking: masking.py:spans
    ```
    """
    yield from ()


@rule(
    "PLG002",
    "failing-plugin",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("plugins",),
    waivable=False,
    inapplicable=why_no_plugins,
)
def failing_plugin(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A plug-in that fails a test before the launch, or that raises an exception during the run.

    ## What it does
    Calls each function in a child process. A masking function is called twice with the same generator, and
    for the documents in another order; a dataset is read twice; both also in a second process. A loss must
    be finite, have a gradient, and be the same in a smaller microbatch. A metric must not depend on the order
    of the predictions. A hook is built and its state restored; no event is sent. Global random generators
    must not be used. Masking may select up to 1.25 times `datacollator.mlm_probability`, and no special
    tokens; labels are the tokens of the text. A call that takes more than 120 s fails, with its line
    (540 s for a dataset). A metric that selects the best checkpoint must be one that a plug-in returns.

    ## Why is this bad?
    A resumed run repeats the steps since its checkpoint. If a function does not give the same results again,
    the run continues with other targets, other rows or another loss, and nobody notices.

    ## Example
    ```python
    def spans(ids, special, rng, context):
        chosen = numpy.random.random(len(ids)) < context.probability
    ```

    ## Use instead
    ```python
    def spans(ids, special, rng, context):
        chosen = rng.random(len(ids)) < context.probability
    ```
    """
    found = require_group(facts.plugins)
    for each in found.failures:
        yield Violation(each.key, each.message, each.hint)
    share, probability = found.masked_share, run.config.datacollator.mlm_probability
    if share is not None and share > MAX_TARGETS * probability:
        selected = f"plugins.masking selects {share:.1%} of the tokens, but {SHARE} is {probability:.1%}"
        message = f"{selected} (limit {MAX_TARGETS:g} times as many)"
        yield Violation(SHARE, message, f"set {SHARE} to {min(1.0, share):.2f}, or select fewer tokens")
    metric = run.config.trainer.metric_for_best_model
    if metric is not None and metric not in known_metrics() and not found.failures:
        yield from _unknown_metric(metric, found.metrics)


def _unknown_metric(metric: str, returned: tuple[str, ...]) -> Violations:
    if metric not in returned:
        message = f"{METRIC} is {metric}, but plugins.metrics return {', '.join(returned) or 'none'}"
        yield Violation(METRIC, message, f"set {METRIC} to {' or '.join(returned) or 'eval/loss'}")


@rule(
    "PLG003",
    "resumed-with-edited-plugin",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("resume",),
    inapplicable=why_not_resumed,
)
def resumed_with_edited_plugin(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that resumes with plug-ins that were edited since its checkpoint.

    ## What it does
    Compares the SHA-256 of the files of plug-ins, of what they import from the same folder, and the versions
    of their packages with the checkpoint's. The trainer compares the files again before it imports them.

    ## Why is this bad?
    The run before and after the checkpoint would have other targets, another loss or another metric. If that
    is intended, such as a fix for a crash, accept it with a waiver, which the run records.

    ## Example
    ```text
    plug-ins have changed since runs/first/checkpoints/800: helpers.py was edited
    ```

    ## Use instead
    ```yaml
    waivers:
      - {code: PLG003, reason: fixed a crash at step 812, expires: 2026-12-31}
    ```
    """
    resume = require_group(facts.resume)
    if resume.is_verified and resume.plugin_differences:
        message = f"plug-ins have changed since {resume.target}: {'; '.join(resume.plugin_differences)}"
        hint = (
            "restore the files, set another trainer.output_dir for a new run, or accept the change with a "
            "waiver of PLG003"
        )
        yield Violation("plugins", message, hint)


@rule(
    "PLG004",
    "plugin-of-another-task",
    severity=Severity.FAIL,
    level=Level.STATIC,
    waivable=False,
    inapplicable=why_no_plugins,
)
def plugin_of_another_task(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A plug-in that the task does not call, or a metric without a direction.

    ## What it does
    Requires a task of masked tokens for `plugins.masking`, classification of texts or words for
    `plugins.loss`, and one of these or multiple choice for `plugins.metrics`. Requires
    `trainer.greater_is_better` if a metric of a plug-in selects the best checkpoint, and
    `dataset.streaming: false` with `plugins.dataset`.

    ## Why is this bad?
    The function would never be called, and the run would train without it.

    ## Example
    ```yaml
    task: pretrain
    plugins:
      loss: losses.py:focal
    ```

    ## Use instead
    ```yaml
    task: classification
    plugins:
      loss: losses.py:focal
    ```
    """
    from neobert.plugins.kinds import requested_plugins  # few runs have plug-ins

    config, head = run.config, spec_of(run.config).auto_class
    for each in requested_plugins(config.plugins):
        if head not in HEADS.get(each.kind.name, (head,)):
            message = f"{each.key} is not called by task {config.task}"
            yield Violation(each.key, message, f"remove {each.key}, or set another task")
    if config.plugins.dataset is not None and config.dataset.streaming:
        message = "plugins.dataset returns rows that are read by index, but dataset.streaming is true"
        yield Violation("dataset.streaming", message, "set dataset.streaming to false")
    metric = config.trainer.metric_for_best_model
    is_plugged = metric is not None and metric not in known_metrics() and bool(config.plugins.metrics)
    if is_plugged and config.trainer.greater_is_better is None:
        message = (
            f"greater_is_better is null, but {metric} is a metric of a plug-in and has no default direction"
        )
        yield Violation(DIRECTION, message, f"set {DIRECTION} to true or false")
