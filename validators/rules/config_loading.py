"""Config rules: errors of the config loader.

They yield no violations: a run that they receive was loaded without errors.
"""

from __future__ import annotations

from functools import partial

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity
from validators.rule import RaisedBy, Violations, rule

loader_rule = partial(
    rule, severity=Severity.FAIL, level=Level.STATIC, waivable=False, raised_by=RaisedBy.LOADER
)


@loader_rule("CFG001", "unknown-key")
def _unknown_key(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A key that the schema does not define.

    ## What it does
    Rejects every key that its section does not define, and suggests the closest key of any section.

    ## Why is this bad?
    If an unknown key is ignored, the default stays in force: `save_step: 500` saves nothing at step
    500, which is noticed when the run is over.

    ## Example
    ```yaml
    model:
      save_steps: 500   # belongs to trainer
    ```

    ## Use instead
    ```yaml
    trainer:
      save_steps: 500
    ```
    """
    yield from ()


@loader_rule("CFG002", "duplicate-key")
def _duplicate_key(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A key that appears twice in one mapping.

    ## What it does
    Rejects a mapping with a repeated key, and reports both lines.

    ## Why is this bad?
    Most YAML readers silently keep the last value, so the value that a reader sees first is not
    the one that is used.

    ## Example
    ```yaml
    trainer:
      save_steps: 5000
      max_steps: 50000
      save_steps: 0
    ```

    ## Use instead
    ```yaml
    trainer:
      save_steps: 5000
      max_steps: 50000
    ```
    """
    yield from ()


@loader_rule("CFG003", "wrong-value")
def wrong_value(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A value of the wrong type, out of range, or not one of the allowed values.

    ## What it does
    Checks every value against the schema without conversion: a string is not accepted as a number, `no` is
    not a boolean, and NaN is not a learning rate. Files follow YAML 1.2, so `5e-4` is a number.

    ## Why is this bad?
    Implicit conversion guesses wrong: the text "false" counts as true, and a backend that
    does not exist becomes the slow default.

    ## Example
    ```yaml
    trainer:
      torch_compile: no
      max_steps: "50000"
    ```

    ## Use instead
    ```yaml
    trainer:
      torch_compile: false
      max_steps: 50000
    ```
    """
    yield from ()


@loader_rule("CFG007", "renamed-key")
def _renamed_key(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A key of another trainer or an earlier version, which has a different name here or was removed.

    ## What it does
    Recognizes key names of other trainers and of earlier versions, and reports the name to use here, or why
    there is none.

    ## Why is this bad?
    An alias would be a second spelling of the same key. Two equivalent files would differ, and a file with
    both spellings would contradict itself.

    ## Example
    ```yaml
    trainer:
      save_every: 5000
    ```

    ## Use instead
    ```yaml
    trainer:
      save_steps: 5000
    ```
    """
    yield from ()


@loader_rule("CFG011", "unreadable-config")
def _unreadable_config(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A file that cannot be read as a config.

    ## What it does
    Rejects a path that is missing or a folder, and a file that is empty, larger than 1 MiB, binary, not
    UTF-8, not valid YAML or TOML, made of several YAML documents, or not a mapping. The command exits with
    code 2.

    ## Why is this bad?
    An empty file would be a run of defaults only, and the second document of a file would never be
    read.

    ## Example
    ```yaml
    # run.yaml is empty
    ```

    ## Use instead
    ```yaml
    profile: cpu-demo
    ```
    """
    yield from ()


@loader_rule("CFG012", "unresolved-variable")
def _unresolved_variable(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A variable that is undefined, defined by itself, or misspelled.

    ## What it does
    Resolves every `$variables.name` before anything else, and lists the names of a cycle in order. Rejects
    a value, or a component of a path, that starts like a variable but is not one: `$HOME/runs`,
    `$variable.root`. The text column (`dataset.text_column`) may have such a name.

    ## Why is this bad?
    An unresolved reference becomes a folder named `$variables.root` or `$HOME`, and the run writes there.

    ## Example
    ```yaml
    variables:
      root: $variables.base
    trainer:
      output_dir: ${variables.root}/first
    ```

    ## Use instead
    ```yaml
    variables:
      root: /scratch/runs
    trainer:
      output_dir: ${variables.root}/first
    ```
    """
    yield from ()
