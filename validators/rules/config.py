"""Config rules: profile, overrides, stability and waivers of a resolved run."""

from __future__ import annotations

from typing import NamedTuple

from neobert.config import from_dict, to_dict
from neobert.config.canonical import digest
from neobert.config.keys import keys_affecting
from neobert.config.variables import keys_using_variable
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.remaining import remaining_in_run
from validators.rule import RaisedBy, Violations, rule


class DurationLimit(NamedTuple):
    """Maximum duration of a run by kind of profile, and the kinds of profiles for longer runs."""

    time: int
    unit: str
    unit_s: int
    longer: str


LIMITS = {
    "smoke": DurationLimit(15, "minutes", 60, "a development profile (cpu, gpu) or a production profile"),
    "development": DurationLimit(24, "hours", 3600, "a production profile"),
}
VARIABLES = "variables"


@rule("CFG005", "unpinned-profile", severity=Severity.FAIL, level=Level.STATIC)
def unpinned_profile(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run without a pinned profile that fits its purpose.

    ## What it does
    Fails if a run sets no profile, if a shipped profile is not pinned in profiles.lock or differs from its
    pin, if the profile is only a base for others, and if a smoke profile is used for a run longer than
    15 minutes, or a development profile for one longer than 24 hours. All launches of a run count, because
    the limit is about its purpose; the steps of a run that it continues do not. Your own profiles, in the
    folders of NEOBERT_PROFILE_PATH, need no pin.

    ## Why is this bad?
    A demo file once ran on two GPUs for a day, because nothing marked it as a demo. A profile states what a
    configuration is for, and its hash shows that it is unchanged since its review.

    ## Example
    ```yaml
    profile: gpu-smoke
    trainer:
      max_steps: 500000
    ```

    ## Use instead
    ```yaml
    profile: a100-prod
    trainer:
      max_steps: 500000
    ```
    """
    if run.profile is None:
        yield Violation(
            "profile",
            "no `profile:` is set, so this run is checked as production",
            "add `profile: gpu`, `profile: cpu`, or another name of `neobert-launch profiles list`",
        )
        return
    name, kind = run.profile.name, run.profile.kind
    if kind == "base":
        yield Violation(
            "profile",
            f"{name} is a base for other profiles and cannot be run",
            f"set profile to one that extends {name}",
        )
    limit, time_s = LIMITS.get(kind), remaining_in_run(run, plan, facts).eta_s.value
    if limit is not None and time_s > limit.time * limit.unit_s:
        times = f"{time_s / limit.unit_s:.0f} {limit.unit} (limit {limit.time})"
        yield Violation(
            "profile",
            f"{name} is a {kind} profile, but the run takes {times}",
            f"set profile to {limit.longer}, or lower trainer.max_steps",
        )
    if kind != "base" and (run.profile.is_shipped or run.profile.is_pinned) and not run.profile.is_locked:
        fault = (
            "differs from its pin in profiles.lock"
            if run.profile.is_pinned
            else "has no pin in profiles.lock"
        )
        yield Violation(
            "profile",
            f"{name} {fault}",
            f"review {name}, then run `python -m profiles.lock --write`",
        )


@rule("CFG006", "unstable-config", severity=Severity.FAIL, level=Level.STATIC, waivable=False)
def unstable_config(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A config that changes when it is written and read back.

    ## What it does
    Writes the resolved config in canonical form, reads it back as the trainer does, and compares the
    values and the digest of the run.

    ## Why is this bad?
    The trainer reads what the launcher wrote. If they differ, the checked config is not the one that trains,
    and the receipt is worthless.

    ## Example
    ```text
    resolved.json was edited by hand: its digest differs from the run's digest
    ```

    ## Use instead
    ```text
    neobert-launch train --profile a100-prod --set trainer.save_steps=500
    ```
    """
    reread = from_dict(to_dict(run.config))
    if reread != run.config or digest(reread) != run.digest:
        yield Violation(
            "",
            "the resolved config changes when it is written and read back",
            "run the command again with the original run file; do not edit resolved.json",
        )


@rule("CFG008", "production-override", severity=Severity.WARN, level=Level.STATIC, production_only=True)
def production_override(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A value of a production run that is set on the command line only.

    ## What it does
    Lists every key of a production run that a command-line argument overrides, waivers included, except keys
    that only affect folders, logging, the speed of data loading, and resuming. A variable is listed with the
    keys that use it, unless all of them are such keys. Environment variables cannot override keys, so none
    are checked.

    ## Why is this bad?
    The file was reviewed; the argument exists only in a shell's history, and the next run will not have it.

    ## Example
    ```text
    neobert-launch train --profile a100-prod --set trainer.save_steps=0
    ```

    ## Use instead
    ```yaml
    # run.yaml, under review like the code
    profile: a100-prod
    trainer:
      save_steps: 500
    ```
    """
    for path in sorted({override.path for override in run.overrides}):
        section, _, name = path.partition(".")
        reached = keys_using_variable(name, run.references) if section == VARIABLES else (path,)
        if keys_affecting("reporting", "loading", "start").issuperset(reached):
            continue
        into = f", and is used by {', '.join(reached)}" if section == VARIABLES else ""
        yield Violation(
            path,
            f"{path} is set on the command line{into}",
            f"set {path} in the run file, or waive CFG008 with a reason",
        )


@rule(
    "CFG009",
    "idle-waiver",
    severity=Severity.WARN,
    level=Level.STATIC,
    waivable=False,
    raised_by=RaisedBy.WAIVERS,
)
def idle_waiver(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A waiver without effect: expired, invalid, unused, or for a code that does not exist.

    ## What it does
    Runs after all other rules. Each waiver needs a reason, an expiry date, the code of a rule that may be
    waived, and a finding that it waives. A waiver of a rule whose result is unknown is not reported as
    unused. A waiver of CFG008 must be in the file: on the command line it would waive itself.

    ## Why is this bad?
    A forgotten waiver hides the next fault of the same kind, which was never reviewed.

    ## Example
    ```yaml
    waivers:
      - {code: BUD002, reason: "batch ramp of the spring runs", expires: 2020-01-31}
    ```

    ## Use instead
    ```yaml
    waivers: []
    ```
    """
    yield from ()


@rule(
    "CFG010",
    "unlinted-config",
    severity=Severity.FAIL,
    level=Level.STATIC,
    waivable=False,
    raised_by=RaisedBy.REPOSITORY,
)
def unlinted_config(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A config in the repository that fails the static rules.

    ## What it does
    `neobert-launch lint PATH...` checks every config below the paths with all static rules; CI runs
    it on the shipped profiles and all run files. This rule concerns the repository, not one run.

    ## Why is this bad?
    A config that is not in use breaks unnoticed, and is found broken when it is needed, with GPUs waiting.

    ## Example
    ```yaml
    # a CI step that cannot fail
    run: neobert-launch lint configs || true
    ```

    ## Use instead
    ```yaml
    run: neobert-launch lint profiles configs --output-format github
    ```
    """
    yield from ()
