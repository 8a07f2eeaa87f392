"""Report formats for people, CI and editors. The exit code is the same in all of them."""

from __future__ import annotations

from importlib import import_module

from launcher.report.report import Report
from launcher.terminal import console
from launcher.terminal.values import to_json

FORMATS = ("text", "json", "github", "sarif", "junit")


def print_report(report: Report, output_format: str) -> None:
    """Write a report to standard output. Only GitHub's format contains workflow commands."""
    put = console.write_commands if output_format == "github" else console.write
    put(render(report, output_format))


def render(report: Report, output_format: str) -> str:
    """Return the report in an output format, whose module is imported on use."""
    if output_format == "json":
        return to_json(report.as_json())
    text: str = import_module(f"{__name__}.{output_format}").render(report)
    return text
