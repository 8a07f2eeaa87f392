"""Every measurement that is kept is named on a page, and the pages say what some of them say."""

import importlib
import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from neobert.config.migrated_keys import rename_table
from profiles.registry import list_profiles, load_profile

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs" / "measurements").glob("*.json"))
PAGES = {file.name: file.read_text("utf-8") for file in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}


ARMS = {
    "fused": ("fused-against-torch", "detail", "arms", "a"),
    "triton": ("fused-against-triton", "detail", "arms", "b"),
    "torch": ("fused-against-torch", "detail", "arms", "b"),
}
"""Measurement of the trainer on each set of kernels: name of the file, and keys."""


def test_every_measurement_is_named_where_a_reader_looks():
    text = "\n".join(PAGES.values())
    names = [file.stem for file in FILES]
    assert [name for name in names if f"`{name}`" not in text and f"{name}.json" not in text] == []


@pytest.mark.parametrize(
    ("name", "keys", "written", "page"),
    [
        ("validate-gpu-full", ["value"], "{:.1f} s on one H200", "performance.md"),
        ("checkpoint-stall", ["detail", "beside", "cost_of_a_save_ms"], "costs {:.0f} ms", "recovery.md"),
        ("scaling-2gpu", ["value"], "`replicated` | 341,100 | **{:.3f}** |", "performance.md"),
        ("validate-gpu-full-2gpu", ["value"], "{:.1f} s on two H200", "performance.md"),
        ("lint_seconds", ["value"], "{:.1f} s", "ci.md"),
        ("first-step", ["value"], "**{:.2f} s** with full ones", "performance.md"),
        ("first-step", ["detail", "empty", "seconds"], "**{:.1f} s** to the first step", "performance.md"),
        ("scaling-2gpu", ["value"], "Two GPUs reach {:.3f} of twice one", "gpus.md"),
        ("contrastive-speed", ["value"], "both compiled are **{:.2f} times** apart", "embeddings.md"),
        ("encode-vs-sentence-transformers", ["value"], "{:.1f} times its fastest form", "README.md"),
        ("contrastive-speed", ["value"], "BERT-base: {:.2f} times over four rounds", "README.md"),
        (
            "fsdp2-3b",
            ["detail", "save_on_two_h200", "longest_step_beyond_a_usual_one_s"],
            "steps meanwhile at most {:.2f} s",
            "gpus.md",
        ),
    ],
)
def test_the_figure_on_the_page_is_the_one_that_was_measured(name, keys, written, page):
    assert written.format(measured(name, *keys)) in " ".join(PAGES[page].split())


def part(name: str, *keys: str) -> Any:
    value = json.loads((ROOT / "docs" / "measurements" / f"{name}.json").read_text("utf-8"))
    for key in keys:
        value = value[key]
    return value


def measured(name: str, *keys: str) -> float:
    return float(part(name, *keys))


@pytest.mark.parametrize(
    ("kernels", "form"),
    [
        ("fused", "{:.0f}k tokens/s with them"),
        ("triton", "{:.0f}k with the project's Triton kernels alone"),
        ("torch", "{:.0f}k on torch's modules"),
    ],
)
def test_a_rate_on_the_page_of_gpus_is_the_one_that_was_measured(kernels, form):
    assert form.format(rate(kernels) / 1000) in " ".join(PAGES["gpus.md"].split())


def rate(kernels: str) -> float:
    return measured(*ARMS[kernels], "tokens_per_second")


@pytest.mark.parametrize("kernels", ARMS)
def test_the_table_of_kernels_is_the_one_that_was_measured(kernels):
    arm = part(*ARMS[kernels])
    row = "{tokens_per_second:,.0f} | {step_ms:.1f} | {mfu_of_nominal_peak:.3f} |".format(**arm)
    row += " {gpu_mem_reserved_mib:,} MiB |".format(**arm["memory"])
    assert row in PAGES["performance.md"].replace("*", "")


def test_the_parts_of_the_start_are_those_that_were_measured():
    detail = json.loads((ROOT / "docs/measurements/start-up.json").read_text("utf-8"))["detail"]
    columns = (detail["empty"], detail["rehearsed_again"], detail["warm"])
    for part in detail["empty"]["parts"]:
        row = [f"{launch['parts'][part]:.1f}" if part in launch["parts"] else "" for launch in columns]
        assert " ".join(f"| {part} | {' | '.join(row)} |".split()) in PAGES["performance.md"]
    row = " | ".join(f"**{launch['seconds']:.1f}**" for launch in columns)
    assert f"| all | {row} |" in PAGES["performance.md"]
    for launch in columns:
        assert sum(launch["parts"].values()) == pytest.approx(launch["seconds"], abs=0.05)


def test_the_readme_has_the_rates_that_were_measured():
    rates = [rate(kernels) / 1000 for kernels in ARMS]
    forms = (
        "{:.0f}k tokens/s with the kernels of the extra",
        "{:.0f}k with the project's Triton kernels",
        "{:.0f}k on torch's modules",
    )
    page = " ".join(PAGES["README.md"].split())
    assert [form for form, rate in zip(forms, rates, strict=True) if form.format(rate) not in page] == []
    ratios = [measured(name, "value") for name in ("vs-hf-concatenated", "vs-hf-padded")]
    assert all(f"{ratio:.2f} times" in page for ratio in ratios)
    page = " ".join(PAGES["performance.md"].split())
    assert all(f"**{ratio:.2f}** (" in page for ratio in ratios)
    assert f"**{1 / measured('fused-against-torch', 'value'):.2f} times** as fast as torch's modules" in page


def test_no_page_shows_a_figure_against_a_peer_whose_kernels_are_not_known():
    """Figures against peers that were profiled name the kernels of both sides."""
    for path in FILES:
        if path.stem.startswith(("vs-hf", "time-to-loss", "cpu-vs-transformers", "glue", "fine-tuning")):
            assert json.loads(path.read_text("utf-8"))["detail"]["peer_kernels"]


def test_the_fine_tuning_of_the_page_is_the_one_that_was_measured():
    detail = json.loads((ROOT / "docs/measurements/fine-tuning-sst2.json").read_text("utf-8"))["detail"]
    page, readme = PAGES["performance.md"], PAGES["README.md"]
    for side in ("ours", "peer", "peer without cuDNN"):
        found = detail[side]
        accuracy = f"{100 * found['accuracy']:.1f} ± {100 * found['accuracy_std']:.1f}"
        times = f"{found['seconds_of_steps']:.1f} s | {found['seconds']:.1f} s"
        assert f" | {times} | {accuracy} |" in page, side
        assert accuracy in readme, side
    default, best = (detail[f"seconds, ours / {peer}"] for peer in ("peer", "peer without cuDNN"))
    assert f"**{default:.2f} of the default's seconds, as many as the best form's**" in page
    assert best == pytest.approx(1, abs=0.005)
    assert f"the default's seconds times {default:.2f}, those of its best form times {best:.2f}" in readme


TASKS = {"CoLA": "cola", "STS-B": "stsb", "QNLI": "qnli", "SST-2": "sst2", "MRPC": "mrpc"}
"""As the page writes them, and their names in the measurement."""


def test_the_table_of_small_encoders_is_the_one_that_was_measured():
    page = " ".join(PAGES["evaluation.md"].split())
    detail = json.loads((ROOT / "docs/measurements/glue-small.json").read_text("utf-8"))["detail"]
    for title, found in [
        *((title, detail["tasks"][TASKS[title]]) for title in TASKS),
        ("mean", detail["mean"]),
    ]:
        sides = [
            f"{100 * found[side]['mean']:.1f} ± {100 * found[side]['std']:.1f}" for side in ("ours", "peer")
        ]
        apart = [found["difference"]["mean"], *found["difference"]["interval"]]
        row = "| {} | {} | {:+.1f} ({:.1f} to {:.1f}) |".format(*sides, *(100 * each for each in apart))
        assert re.search(rf"\| {title}[^|]* {re.escape(row)}", page), row
    ours, peer = (fmean(run["test_loss"] for run in detail["pretraining"][side]) for side in ("ours", "peer"))
    assert f"is lower: {ours:.2f} against {peer:.2f}" in page


def effect(arm: dict[str, Any]) -> str:
    """Write what an arm of the ablations changed as the page does."""
    nats, time = ((arm[name]["mean"], *arm[name]["interval"]) for name in ("change", "time"))
    return "| {:+.3f} ({:.3f} to {:.3f}) | {:.2f} ({:.2f} to {:.2f}) |".format(*nats, *time)


@pytest.mark.parametrize(
    "name", ["recipe-ablations", "recipe-ablations-245M", "short-pieces", "short-pieces-245M"]
)
def test_the_ablations_on_the_page_are_those_that_were_measured(name):
    arms = json.loads((ROOT / f"docs/measurements/{name}.json").read_text("utf-8"))["detail"]["arms"]
    page = " ".join(PAGES["learning.md"].split())
    for arm in arms:
        assert effect(arm) in page, arm["arm"]


def test_the_killed_run_of_the_readme_is_the_one_that_was_measured():
    measured = json.loads((ROOT / "docs/measurements/killed-run.json").read_text("utf-8"))
    detail, page = measured["detail"], " ".join(PAGES["README.md"].split())
    assert measured["value"] == 0
    assert f"killed by SIGKILL {len(detail['kills'])} times" in page
    assert f"{detail['compared_losses']} losses, of training and of evaluations" in page


def test_the_figures_are_drawn_from_the_measurements(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    drawn = importlib.import_module("figures").render_figures()
    assert drawn == {name: (ROOT / "docs" / "figures" / name).read_text("utf-8") for name in drawn}
    assert drawn.keys() == {path.name for path in (ROOT / "docs" / "figures").iterdir()}


def test_the_readme_says_which_profiles_were_run():
    profiles = [load_profile(name) for name in list_profiles()]
    run = [each.name for each in profiles if each.kind == "production" and not each.expects.is_estimate]
    assert run == ["h100-prod", "h200-prod"]
    for page in ("README.md", "gpus.md"):
        assert "Only `h100-prod` and `h200-prod` have been run at full size on their hardware" in " ".join(
            PAGES[page].split()
        )


def test_nothing_is_refused_for_a_figure_that_was_not_measured():
    answers = [text for part in rename_table().values() for text in part.values()]
    assert [text for text in answers if "measured slower" in text] == []
