"""CFG, the part that only a rehearsal can tell: keys that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from neobert.config import all_keys, describe
from neobert.config.effects import keys_affecting
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_rehearsal import RehearsalFacts
from validators.finding import Level, Severity, Violation
from validators.rehearsed import NEEDS, cut_short, rehearsal_of
from validators.rule import CannotTellError, Violations, rule

# The launcher and the rules read these, and what is prepared already is not prepared again.
READ_ELSEWHERE = keys_affecting("reporting", "start") | {"task", "dataset.num_proc"}
READ_ON_A_GPU = frozenset({"trainer.tf32"})
DECLARED = ("file", "override")


@rule("CFG004", "unread-key", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def unread_key(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A key that was set, and that no line of the program reads.

    ## What it does
    Records in the rehearsal which keys the program reads, and names those that were set to something else
    than their default and were not among them. It fails for a key of the run file or the command line, and
    warns of one that the profile sets. Keys of the launcher and of its rules are not expected there.

    ## Why is this bad?
    Somebody believes that the key works. The run differs from what its file says, and nothing tells.

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
    found = rehearsal_of(facts)
    if because := cut_short(facts):
        raise CannotTellError(f"{because}, so that not all of the program ran")
    for key in _unread(run, found):
        is_declared = run.origin(key).kind in DECLARED
        yield Violation(
            key,
            f"{key} is set, and nothing in the program reads it",
            "take it out, or set the key that switches it on",
            None if is_declared else Severity.WARN,
        )


def _unread(run: ResolvedRun, found: RehearsalFacts) -> Iterator[str]:
    elsewhere = READ_ELSEWHERE if found.device == "cuda" else READ_ELSEWHERE | READ_ON_A_GPU
    known = {*found.keys_read, *found.keys_replaced} | elsewhere
    for key in (key for key in all_keys() if run.origin(key).kind != "default"):
        if key not in known and attrgetter(key)(run.config) != describe(key).default:
            yield key
