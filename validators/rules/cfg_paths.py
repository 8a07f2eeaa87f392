"""CFG, the part about paths."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule


@rule("CFG014", "path-from-working-directory", severity=Severity.WARN, level=Level.STATIC)
def path_from_working_directory(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A path of a run file that exists only from the working directory.

    ## What it does
    Relative paths of a run file are relative to that file. Earlier versions read them from the working
    directory; one that exists there, and not next to the run file, still works in this release, with this
    warning. Paths of profiles and of the command line are relative to the working directory.

    ## Why is this bad?
    The same file would name other data when the command is given in another folder.

    ## Example
    ```yaml
    # configs/run.yaml, launched from the folder above
    dataset:
      path: data/text
    ```

    ## Use instead
    ```yaml
    # configs/run.yaml
    dataset:
      path: ../data/text
    ```
    """
    for path in run.outdated_paths:
        section, _, name = path.partition(".")
        value = getattr(getattr(run.config, section), name)
        yield Violation(
            path,
            f"{path} {value} exists in the working directory and not next to the run file",
            f"write {path} relative to the run file; the next release reads it only so",
        )
