"""CFG, the part that is judged: which profile a run builds on, what was overridden, who answers for what."""

from __future__ import annotations

from neobert.config import digest, from_dict, to_dict
from neobert.config.variables import keys_reached
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import RaisedBy, Violations, rule

SMOKE_LIMIT_S = 15 * 60
SECTIONS_WITHOUT_EFFECT, VARIABLES = ("trackers", "trackio", "wandb"), "variables"
KEYS_WITHOUT_EFFECT = frozenset(
    {
        "profile",
        "trainer.output_dir",
        "trainer.resume_from_checkpoint",
        "trainer.logging_steps",
        "dataset.cache_dir",
        "dataset.num_proc",
        "dataset.num_workers",
        "dataset.prefetch_factor",
        "guard.price_per_gpu_hour",
    }
)


@rule("CFG005", "unpinned-profile", severity=Severity.FAIL, level=Level.STATIC)
def unpinned_profile(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run without a named, pinned profile that is fit for its length.

    ## What it does
    Asks that a run names a profile, that a shipped profile is what profiles.lock has pinned, and is pinned at
    all, that it is not a mere base of others, and that a smoke profile is not used for a run of more than
    15 minutes. Profiles of one's own, in the folders of NEOBERT_PROFILE_PATH, are not pinned.

    ## Why is this bad?
    A showcase file was once given to two GPUs for a day, because nothing said that it was one. A profile
    says what a configuration is for, and its hash says that it still is what was reviewed.

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
            "the run names no profile, so nothing says what it is for",
            "add `profile: NAME`; `neobert-launch profiles list` shows them",
        )
        return
    name, kind = run.profile.name, run.profile.kind
    if kind == "base":
        yield Violation(
            "profile", f"{name} is a base of other profiles and no run", "name one that extends it"
        )
    if kind == "smoke" and plan.eta_s.value > SMOKE_LIMIT_S:
        minutes = plan.eta_s.value / 60
        yield Violation(
            "profile",
            f"{name} is a smoke profile and the run takes {minutes:.0f} minutes, more than 15",
            "name a production profile, or lower trainer.max_steps",
        )
    if kind != "base" and (run.profile.is_shipped or run.profile.is_pinned) and not run.profile.is_locked:
        fault = "differs from what profiles.lock has pinned" if run.profile.is_pinned else "has no pin"
        yield Violation(
            "profile",
            f"{name} {fault}",
            "review it, then `python -m profiles.lock --write`",
        )


@rule("CFG006", "unstable-config", severity=Severity.FAIL, level=Level.STATIC, waivable=False)
def unstable_config(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A config that is not the same after it was written and read again.

    ## What it does
    Writes the resolved config in its canonical form, reads it back as the trainer does, and compares both
    the values and the digest that the run carries.

    ## Why is this bad?
    The trainer reads what the launcher wrote. Where the two differ, what was checked is not what trains,
    and a receipt says nothing.

    ## Example
    ```text
    resolved.json was edited by hand: its digest is no longer that of the run
    ```

    ## Use instead
    ```text
    neobert-launch train --profile a100-prod --set trainer.save_steps=500
    ```
    """
    again = from_dict(to_dict(run.config))
    if again != run.config or digest(again) != run.digest:
        yield Violation(
            "",
            "the resolved config is not the same after it was written and read again",
            "resolve it anew from its file; never edit resolved.json",
        )


@rule("CFG008", "production-override", severity=Severity.WARN, level=Level.STATIC, production_only=True)
def production_override(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A value of a production run that only the command line knows.

    ## What it does
    Lists every key of a production run that an argument overrides, waivers among them, apart from those that
    say where results go and how many hands prepare them. A variable is listed with the keys that it goes
    into, where one of them is none of those. No environment variable overrides a key: there is none to look
    for.

    ## Why is this bad?
    What was reviewed is the file. An argument lives in a shell's history, and the next run does not have it.

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
        reached = keys_reached(name, run.references) if section == VARIABLES else (path,)
        if all(map(_is_without_effect, reached)):
            continue
        into = f", and goes into {', '.join(reached)}" if section == VARIABLES else ""
        yield Violation(
            path,
            f"{path} is set by an argument{into}",
            "put it into the run file, or waive CFG008 with a reason",
        )


def _is_without_effect(path: str) -> bool:
    return path in KEYS_WITHOUT_EFFECT or path.partition(".")[0] in SECTIONS_WITHOUT_EFFECT


@rule(
    "CFG009",
    "idle-waiver",
    severity=Severity.WARN,
    level=Level.STATIC,
    waivable=False,
    raised_by=RaisedBy.WAIVERS,
)
def idle_waiver(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A waiver that lifts nothing: expired, refused, unused, or of a code that does not exist.

    ## What it does
    Closes the ledger after all rules were judged: every waiver needs a reason that can be read and a day, the
    code of a rule that may be waived, and a finding that it lifts. A rule that could not be judged leaves its
    waiver alone. A waiver of CFG008 has to stand in the file: as an argument it would lift itself.

    ## Why is this bad?
    A forgotten waiver lifts the next fault of the same kind, for which nobody answers.

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
    """A config in the repository that does not pass the static rules.

    ## What it does
    `neobert-launch lint PATH...` judges every config below the paths with every static rule, and CI runs
    it over the shipped profiles and all run files. It says nothing about one run; it is about the
    repository.

    ## Why is this bad?
    A config that nobody runs today rots, and it is found on the day that it is needed, with GPUs waiting.

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
