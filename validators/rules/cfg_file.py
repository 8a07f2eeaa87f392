"""CFG, the part that the loader raises: what makes a file no config, before there is a run to judge.

The judges are silent: a run that reaches them has been read.
"""

from __future__ import annotations

from functools import partial

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity
from validators.rule import RaisedBy, Violations, rule

refused = partial(rule, severity=Severity.FAIL, level=Level.STATIC, waivable=False, raised_by=RaisedBy.LOADER)


@refused("CFG001", "unknown-key")
def unknown_key(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A key that the schema does not know.

    ## What it does
    Refuses every key that no section declares, and looks for the one that was meant across all sections.

    ## Why is this bad?
    A key that is dropped in silence leaves its default in force: `save_step: 500` saves nothing at step
    500, and nobody notices before the run is over.

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


@refused("CFG002", "duplicate-key")
def duplicate_key(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A key that stands twice in one mapping.

    ## What it does
    Refuses a mapping in which a key is given more than once, and names both lines.

    ## Why is this bad?
    Most YAML readers let the last one win without a word, so the value that a reader sees first is not
    the one that runs.

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


@refused("CFG003", "wrong-value")
def wrong_value(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A value of the wrong type, out of its bounds, or outside its closed set.

    ## What it does
    Checks every value against the schema without conversion: text is no number, `no` is no switch, NaN is no
    learning rate. Files follow YAML 1.2, so `5e-4` is a number.

    ## Why is this bad?
    A conversion that guesses, guesses wrong one day: the text "false" counts as true, and a backend that
    does not exist becomes the slow one.

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


@refused("CFG007", "renamed-key")
def renamed_key(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A key that has another name here.

    ## What it does
    Recognises names that other trainers and earlier versions use, and says what they are called here.

    ## Why is this bad?
    An alias is a second spelling of the same thing. Two files that say the same would differ, and a file that
    gives both spellings would contradict itself.

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


@refused("CFG011", "unreadable-config")
def unreadable_config(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A file that is no config.

    ## What it does
    Refuses a path that is missing or a folder, and a file that is empty, larger than 1 MiB, binary, not
    UTF-8, not valid YAML or TOML, made of several documents, or no mapping. The command ends with exit
    code 2.

    ## Why is this bad?
    An empty file would be a run of nothing but defaults, and the second document of a file would never be
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


@refused("CFG012", "unresolved-variable")
def unresolved_variable(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A variable that nobody defined, that is defined by itself, or that is none.

    ## What it does
    Resolves every `$variables.name` before anything else, and lists the names of a cycle in order. Refuses
    a value, or a part of a path, that begins like a variable and is none: `$HOME/runs`, `$variable.root`. The
    column of the text may be called so.

    ## Why is this bad?
    A reference that stays text names a folder called `$variables.root` or `$HOME`, and the run writes there.

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
