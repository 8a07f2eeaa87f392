"""CFG: paths in run files."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule


@rule("CFG014", "path-from-working-directory", severity=Severity.WARN, level=Level.STATIC)
def path_from_working_directory(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A path in a run file that exists only relative to the working directory.

    ## What it does
    Relative paths in a run file start at the folder of that file. Earlier versions started at the working
    directory; a path that exists there, but not next to the run file, still works in this release, with this
    warning. Paths in profiles and on the command line start at the working directory.

    ## Why is this bad?
    The same file would use other data when the command runs in another folder.

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
            f"{path} {value} exists in the working directory, but not next to the run file",
            f"make {path} relative to the run file; the next release will not look elsewhere",
        )
