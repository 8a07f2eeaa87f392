"""Every measurement that is kept is named on a page, and the pages say what some of them say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs" / "measurements").glob("*.json"))
PAGES = {file.name: file.read_text("utf-8") for file in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}


@pytest.mark.parametrize("name", [file.stem for file in FILES])
def test_a_measurement_is_named_where_a_reader_looks(name: str) -> None:
    named = (f"`{name}`", f"{name}.json")
    assert [page for page, text in PAGES.items() if any(each in text for each in named)]


@pytest.mark.parametrize(
    ("name", "keys", "written", "page"),
    [
        ("cpu-vs-transformers", ["value"], "{:.2f} times", "performance.md"),
        ("validate-gpu-full", ["value"], "{:.1f} s on one H200", "performance.md"),
        (
            "packed-attention",
            ["detail", "ours", "gradient of queries", "packed"],
            "{:.3f} |",
            "performance.md",
        ),
        ("checkpoint-stall", ["detail", "beside", "cost_of_a_save_ms"], "costs {:.0f} ms", "recovery.md"),
        ("scaling-4gpu", ["value"], "**{:.3f}** |", "performance.md"),
        ("lint_seconds", ["value"], "{:.1f} s", "ci.md"),
    ],
)
def test_the_figure_on_the_page_is_the_one_that_was_measured(
    name: str, keys: list[str], written: str, page: str
) -> None:
    value = json.loads((ROOT / "docs" / "measurements" / f"{name}.json").read_text("utf-8"))
    for key in keys:
        value = value[key]
    assert written.format(value) in PAGES[page]


def test_the_losses_that_agree_do() -> None:
    variants = json.loads((ROOT / "docs" / "measurements" / "step-throughput.json").read_text("utf-8"))[
        "detail"
    ]["variants"]
    packed = {each["variant"]: each["losses"] for each in variants if each["lengths"] == "packed"}
    recorded = [name for name in packed if name.endswith("-graph")]
    assert recorded
    others = [losses for name, losses in packed.items() if name not in recorded]
    apart = max(abs(a / b - 1) for losses in others for a, b in zip(losses, packed["varlen"], strict=True))
    assert apart < 0.0003
