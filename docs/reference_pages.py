"""Reference pages of the site, generated from the code at each build and not kept in the repository."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from launcher.cli.app import app_with_all_commands
from launcher.cli.groups import PROGRAM
from launcher.terminal.values import show_value
from neobert.config import all_keys, sections
from neobert.config.key_suggestions import describe_key
from neobert.tasks.specs import SPECS
from profiles.registry import list_profiles, load_profile

ROOT = Path(__file__).parents[1]
METRICS = {
    "train/loss": "Mean loss of the targets since the last line, with the z-loss if there is one.",
    "train/learning_rate": "Learning rate of the step.",
    "train/grad_norm": "Norm of the gradient before clipping.",
    "train/weight_norm": "Norm of all weights.",
    "train/tokens_per_sec": "Tokens per second over all ranks since the last line.",
    "train/tokens_total": "Tokens since step 1.",
    "train/epoch": "Passes over the data so far; null if the size of the data is not known.",
    "train/max_attention_logit": "Muonclip: largest attention logit as last measured, before clipping.",
    "perf/mfu": "Model FLOP utilisation: share of the device's peak; null if the peak is not known.",
    "perf/data_wait_share": "Share of a step spent waiting for data.",
    "perf/host_bound_share": "Share of steps in which the GPU waited for the host's launches; null on a CPU.",
    "perf/recompiles": "Recompilations by torch.compile so far.",
    "perf/kernel_fallbacks": "Calls that ran on a slower kernel than the one chosen, so far.",
    "data/read_retries": "Repeated reads of a stream so far; null without streaming.",
    "data/share/NAME": "Mixtures: share of the tokens drawn from a corpus so far.",
    "time/step_ms": "Mean time of a step since the last line.",
    "time/data_wait_ms": "Mean time of a step spent waiting for data.",
    "time/evaluation_ms": "Time of an evaluation.",
    "time/PART_ms": "`trainer.timing_breakdown`: mean time of a part of a step, of logging, of saves.",
    "nsa/gate_entropy_mean": "Sparse attention, last microbatch: entropy of the gates' shares, in nats.",
    "nsa/max_gate_mean": "Mean of the largest share of a token and head.",
    "nsa/collapse_fraction": "Share of tokens and heads whose largest share exceeds 0.95.",
    "nsa/branch_share_BRANCH": "Mean share of a branch: compressed, selected or sliding (cmp, slc, swa).",
    "nsa/gate_saturated_BRANCH": "Share of gates below 0.05 or above 0.95, in the most saturated layer.",
    "nsa/dead_layers": "Share of layers with a branch below 1 % or saturated in 99 % of the tokens.",
    "nsa/k_mean": "Mean number of blocks that a token selects; `nsa/k_max`: the largest.",
    "nsa/pct_at_max": "Share of tokens that select `block_counts` blocks.",
    "nsa/free_share": "Share of the selected blocks that no rule forces.",
    "nsa/reads_pred": "Selected blocks by the documents' lengths; `nsa/reads_act_total`: by the kernel.",
    "nsa/selection_checksum": "Equal selections have equal checksums, as after a resume.",
    "memory/alloc_retries": "Times that the CUDA allocator emptied its cache and tried again, so far.",
    "memory/out_of_memory": "Allocations that failed, so far.",
    "memory/peak_percent": "Largest allocated share of the device's memory.",
    "eval/source_loss": "`trainer.eval_source_path` or `trainer.continue_from`: loss on the text of before.",
}
"""Metrics that do not belong to a task; a test compares them with the names in the trainer's source."""


def write_pages(docs: Path) -> None:
    """Write the pages below a folder; a page that is the same already keeps its time."""
    for path, content in PAGES.items():
        target, text = docs / path, content()
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text("utf-8") != text:
            target.write_text(text, encoding="utf-8")


def keys_page() -> str:
    """Return all keys of a run file, by section."""
    lines = [
        "# Keys",
        "",
        "Generated from the schema. `neobert-launch explain KEY` prints the same for one key.",
        "",
    ]
    own = [key for key in all_keys() if "." not in key]
    for section in ["", *sections()]:
        keys = [key for key in all_keys() if key.startswith(f"{section}.")] if section else own
        if not keys:
            continue
        about = describe_key(section).description if section else "Keys without a section."
        lines += [
            f"## {section or 'top level'}",
            "",
            about,
            "",
            "| key | takes | default | |",
            "|---|---|---|---|",
        ]
        lines += [_key_row(key) for key in keys] + [""]
    return "\n".join(lines)


def _key_row(key: str) -> str:
    info = describe_key(key)
    only = f" (type {' or '.join(info.tags)})" if info.tags else ""
    default = f"`{show_value(_plain(info.default))}`"
    return f"| `{key}` | {_cell(info.type)} | {_cell(default)} | {_cell(info.description)}{only} |"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def profiles_page() -> str:
    """Return each shipped profile: what it is for, and the values that it sets."""
    loaded = [load_profile(name) for name in list_profiles()]
    lines = [
        "# Profiles",
        "",
        "Generated from the profiles. `neobert-launch profiles show NAME` prints one.",
        "",
    ]
    lines += ["| profile | kind | |", "|---|---|---|"]
    lines += [
        f"| [{each.name}](#{each.name.replace('.', '')}) | {each.kind} | {_cell(each.intent)} |"
        for each in loaded
    ]
    for profile in loaded:
        lines += ["", f"## {profile.name}", "", profile.intent, "", "| key | value |", "|---|---|"]
        for key in all_keys():
            if profile.origins[key].kind == "profile":
                value = _value_of(profile.config, key)
                lines.append(f"| `{key}` | `{_cell(show_value(value))}` |")
    return "\n".join([*lines, ""])


def _value_of(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return _plain(config)


def commands_page() -> str:
    """Return the help of each command."""
    lines = ["# Commands", "", "Generated from the command line: `neobert-launch COMMAND --help`.", ""]
    for words, command in _commands(typer.main.get_command(app_with_all_commands()), ()):
        context = typer.Context(command, info_name=" ".join((PROGRAM, *words)), max_content_width=100)
        lines += [f"## {' '.join(words)}", "", "```text", command.get_help(context).rstrip(), "```", ""]
    return "\n".join(lines)


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, child in getattr(command, "commands", {}).items():
        if getattr(child, "commands", {}):
            yield from _commands(child, (*words, name))
        else:
            yield (*words, name), child


def metrics_page() -> str:
    """Return the metrics of a run, those of evaluations from the tasks."""
    lines = [
        "# Metrics",
        "",
        "Names in `metrics.jsonl` and in every tracker.",
        "",
        "| metric | |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {_cell(text)} |" for name, text in METRICS.items()]
    lines += ["", "## Evaluations", "", "| task | metric | better |", "|---|---|---|"]
    for name, task in SPECS.items():
        for metric in task.metrics:
            better = "higher" if metric.is_higher_better else "lower"
            lines.append(f"| `{name}` | `{metric.name}` | {better} |")
    return "\n".join([*lines, ""])


def measurements_page() -> str:
    """Return a table of the recorded measurements, the oldest first."""
    lines = [
        "# Measurements",
        "",
        "Each figure of these pages is recorded with device, versions, commit and command.",
        "The code that an old file measures still exists, but its speed today was not measured.",
        "A program that this checkout lacks is in its history: `git log -- PROGRAM`.",
        "*Cut short*: rounds or runs are missing.",
        "",
        "| measurement | value | device | torch, transformers | commit | date | command |",
        "|---|---|---|---|---|---|---|",
    ]
    paths = sorted((ROOT / "docs" / "measurements").glob("*.json"))
    found = [(path, json.loads(path.read_text("utf-8"))) for path in paths]
    found.sort(key=lambda each: str(each[1].get("date", "")))
    return "\n".join([*lines, *(_measurement_row(path, each) for path, each in found), ""])


def _measurement_row(path: Path, found: Mapping[str, Any]) -> str:
    versions = found.get("versions", {})
    note = "" if found.get("is_complete", True) else ", *cut short*"
    cells = [
        f"[{path.stem}](../measurements/{path.name})",
        f"{found.get('value', '')} {found.get('unit', '')}".strip() + note,
        str(found.get("device", "")),
        ", ".join(versions[name] for name in ("torch", "transformers") if name in versions),
        str(found.get("commit", ""))[:7],
        str(found.get("date", "")),
        f"`{found.get('command', '')}`",
    ]
    return f"| {' | '.join(map(_cell, cells))} |"


PAGES: dict[str, Callable[[], str]] = {
    "reference/keys.md": keys_page,
    "reference/profiles.md": profiles_page,
    "reference/commands.md": commands_page,
    "reference/metrics.md": metrics_page,
    "reference/measurements.md": measurements_page,
}
