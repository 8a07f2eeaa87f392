"""Report formats for people, CI and editors. The exit code is the same in all of them."""

from __future__ import annotations

from launcher.report.report import Report
from launcher.terminal import console
from launcher.terminal.values import to_json

FORMATS = ("text", "json", "github", "sarif", "junit")


def deliver(report: Report, output_format: str) -> None:
    """Put a report on standard output. Only GitHub's format means the workflow commands that it holds."""
    put = console.write_commands if output_format == "github" else console.write
    put(render(report, output_format))


def render(report: Report, output_format: str) -> str:
    """Write a report in one of the formats. Each is imported when it is asked for."""
    if output_format == "json":
        return to_json(report.as_json())
    if output_format == "github":
        from launcher.report.formats import github

        return github.render(report)
    if output_format == "sarif":
        import validators.rules  # noqa: F401  registers every rule
        from launcher.report.formats import sarif
        from validators.rule import RULES

        return sarif.render(report, RULES)
    if output_format == "junit":
        from launcher.report.formats import junit

        return junit.render(report)
    from launcher.report.formats import text

    return text.render(report)
