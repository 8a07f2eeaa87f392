"""CFG: keys that the rehearsal did not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from neobert.config import RunConfig, all_keys, to_dict
from neobert.config.canonical import flatten
from neobert.config.effects import keys_affecting
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import NEEDS, cut_short, rehearsal_of
from validators.rule import CannotTellError, Violations, rule

if TYPE_CHECKING:
    from validators.facts_rehearsal import RehearsalFacts

# dataset.num_proc is unused because the data is already prepared.
READ_BEFORE = frozenset({"task", "dataset.num_proc"})
READ_ON_A_GPU = frozenset({"trainer.tf32"})
DECLARED = ("file", "override")


@rule("CFG004", "unread-key", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def unread_key(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A key that is set, but that no code reads.

    ## What it does
    The rehearsal records each key that the program reads. Fails for a key of the run file or the command line
    that is set to another value than its default and was not read; warns for one set by the profile. Keys
    that only the launcher and the rules read are exempt.

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
    rehearsal = rehearsal_of(facts)
    if reason := cut_short(facts):
        raise CannotTellError(f"{reason}, so not all of the program ran")
    for key in _unread(run, rehearsal):
        is_declared = run.origin(key).kind in DECLARED
        yield Violation(
            key,
            f"{key} is set, but nothing in the program reads it",
            f"remove {key}, or set the key that enables it",
            None if is_declared else Severity.WARN,
        )


def _unread(run: ResolvedRun, rehearsal: RehearsalFacts) -> Iterator[str]:
    known = {*rehearsal.keys_read, *rehearsal.keys_replaced} | READ_BEFORE
    known |= keys_affecting("reporting", "start")  # the launcher and the rules read these
    if rehearsal.device != "cuda":
        known |= READ_ON_A_GPU
    values, defaults = flatten(to_dict(run.config)), flatten(to_dict(RunConfig()))
    for key in all_keys():
        if key not in known and run.origin(key).kind != "default" and values[key] != defaults.get(key):
            yield key
