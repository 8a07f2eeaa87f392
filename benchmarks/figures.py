"""Figures of the README, drawn from docs/measurements.

    python benchmarks/figures.py          # writes docs/figures/*.svg

Text and lines have colours that are legible on white and on black: an image cannot see the theme of its page.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MEASUREMENTS, FIGURES = ROOT / "docs" / "measurements", ROOT / "docs" / "figures"
TEXT, FAINT, BLUE, RED, GREEN = "#768390", "#76839055", "#3b82f6", "#e5534b", "#2da44e"
PARTS = (
    "imports, checks, text",
    "compilation",
    "measured steps, save, memory",
    "two resumed sessions",
    "trainer",
)
"""Labels of the parts of a start."""
PART_COLOURS = (BLUE, "#d29922", GREEN, "#a371f7", RED)
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
STYLE = re.compile(r"\x1b\[([\d;]*)m")
COLOURS = {"31": "#ff7b72", "32": "#56d364", "33": "#e3b341", "36": "#76e3ea", "2": "#8b949e"}
SPEED_UP, MAX_S = 2.0, 1.5
"""Longest pause in the replay, which is faster than the recording."""


def main() -> None:
    FIGURES.mkdir(exist_ok=True)
    for name, text in render_figures().items():
        (FIGURES / name).write_text(text, encoding="utf-8")


def render_figures() -> dict[str, str]:
    """Return the SVG text of each figure by file name."""
    return {
        "throughput.svg": draw_throughput(kernel_rates()),
        "killed-run.svg": draw_killed_run(read_measurement("killed-run")["detail"]),
        "start-up.svg": draw_startup(startup_times()),
        "terminal.svg": draw_terminal(read_measurement("terminal-recording")["detail"]),
    }


def kernel_rates() -> dict[str, float]:
    """Return the trainer's tokens per second on each set of kernels; torch's modules are the control."""
    torch, triton = (
        read_measurement(f"fused-against-{other}")["detail"]["arms"] for other in ("torch", "triton")
    )
    arms = {"fused": torch["a"], "triton": triton["b"], "torch": torch["b"]}
    return {kernels: arm["tokens_per_second"] for kernels, arm in arms.items()}


def startup_times() -> dict[str, Any]:
    """Return the measured start-up times by their label in the figure."""
    found = read_measurement("start-up")["detail"]
    return {"empty": found["empty"], "warm": found["rehearsed_again"], "kept receipt": found["warm"]}


def read_measurement(name: str) -> Any:
    return json.loads((MEASUREMENTS / f"{name}.json").read_text(encoding="utf-8"))


def svg_document(width: int, height: int, title: str, parts: Iterable[str], font: str = FONT) -> str:
    space = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    head = f'<svg {space} font-family="{font}" role="img">'
    return "\n".join([head, f"<title>{html.escape(title)}</title>", *parts, "</svg>", ""])


def svg_label(
    x: float, y: float, text: str, *, anchor: str = "start", fill: str = TEXT, size: int = 14
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{fill}" font-size="{size}">{html.escape(text)}</text>'


def draw_throughput(rates: dict[str, float]) -> str:
    """Draw one throughput bar per set of kernels."""
    names = {
        "fused": "kernels of the extra fused",
        "triton": "Triton kernels alone",
        "torch": "torch's modules, FA4",
    }
    bars = {title: rates[name] for name, title in names.items()}
    title = "Tokens per second in training, by kernels: 250M-parameter encoder, one H200"
    parts, left, right = [svg_label(0, 18, title, size=15)], 215, 700
    for number, (name, rate) in enumerate(bars.items()):
        y, length = 38 + 38 * number, (right - left) * rate / max(bars.values())
        fill = TEXT if number == len(bars) - 1 else BLUE
        parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="26" rx="3" fill="{fill}"/>')
        parts.append(svg_label(left - 10, y + 18, name, anchor="end"))
        parts.append(svg_label(left + length + 8, y + 18, f"{rate / 1000:.0f}k", size=15))
    return svg_document(760, 160, title, parts)


def draw_startup(bars: dict[str, dict[str, Any]]) -> str:
    """Draw one bar per launch, divided into the phases before the first step."""
    title = "Seconds from the command to the first step, by caches: 53M parameters, one GPU"
    drawn, left, right = [svg_label(0, 18, title, size=15)], 245, 700
    colours = dict(zip(PARTS, PART_COLOURS, strict=True))
    for part, x in zip(PARTS, (0, 165, 275, 490, 650), strict=True):
        drawn.append(f'<rect x="{x}" y="34" width="12" height="12" rx="2" fill="{colours[part]}"/>')
        drawn.append(svg_label(x + 17, 45, part, size=12))
    scale = (right - left) / max(bar["seconds"] for bar in bars.values())
    for number, (name, bar) in enumerate(bars.items()):
        x, y = float(left), 62 + 36 * number
        drawn.append(svg_label(left - 10, y + 18, name, anchor="end"))
        for part, seconds in bar["parts"].items():
            box = f'x="{x:.1f}" y="{y}" width="{seconds * scale:.1f}" height="26"'
            drawn.append(f'<rect {box} fill="{colours[part]}"/>')
            x += seconds * scale
        drawn.append(svg_label(x + 8, y + 18, f"{bar['seconds']:.1f}", size=15))
    return svg_document(760, 70 + 36 * len(bars), title, drawn)


def draw_killed_run(detail: dict[str, Any]) -> str:
    """Draw the losses with a cross for each kill and a line to the checkpoint that the run resumed from."""
    losses = detail["losses"]
    left, right, top, bottom = 46, 740, 58, 280
    values = [value for each in losses.values() for _, value in each]
    low, high = min(values) - 0.2, max(values) + 0.2

    def at(step: float, value: float) -> tuple[float, float]:
        x = left + (right - left) * step / detail["steps"]
        return x, bottom - (bottom - top) * (value - low) / (high - low)

    def line(points: list[list[float]], colour: str) -> str:
        shown = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in points)
        return f'<polyline points="{shown}" fill="none" stroke="{colour}" stroke-width="1.8"/>'

    title = f"One run, {len(detail['kills'])} times SIGKILL: every loss equals that of the run left alone"
    parts = [svg_label(0, 18, title, size=15)]
    parts.append(
        svg_label(left, 42, "training loss", fill=BLUE)
        + svg_label(left + 110, 42, "evaluation loss", fill=GREEN)
    )
    parts.append(
        svg_label(
            left + 235, 42, "\N{MULTIPLICATION SIGN} killed; the shaded steps were trained again", fill=RED
        )
    )
    for value in range(int(low) + 1, int(high) + 1):
        y = at(0, value)[1]
        parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="{FAINT}"/>')
        parts.append(svg_label(left - 8, y + 5, str(value), anchor="end"))
    saved = range(0, detail["steps"] + 1, detail["save_steps"])
    parts += [svg_label(at(step, low)[0], bottom + 20, str(step), anchor="middle") for step in saved]
    parts.append(
        svg_label(
            (left + right) / 2,
            bottom + 40,
            f"step (a checkpoint every {detail['save_steps']})",
            anchor="middle",
        )
    )
    for kill in detail["kills"]:
        (x, _), (back, _) = at(kill["step"], low), at(kill["resumed_from"], low)
        box = f'x="{back:.1f}" y="{top}" width="{x - back:.1f}" height="{bottom - top}"'
        parts.append(f'<rect {box} fill="{RED}" opacity="0.12"/>')
        parts.append(f'<path d="M{back:.1f} {top}V{bottom}" stroke="{RED}" stroke-dasharray="2 4"/>')
        parts.append(
            f'<path d="M{x - 6:.1f} {top + 2}l12 12m0 -12l-12 12" stroke="{RED}" stroke-width="2.5"/>'
        )
    parts.append(line(losses["train/loss"], BLUE) + line(losses["eval/loss"], GREEN))
    for point in losses["eval/loss"]:
        x, y = at(*point)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{GREEN}"/>')
    return svg_document(760, 330, title, parts)


def draw_terminal(detail: dict[str, Any]) -> str:
    """Draw a terminal whose lines appear at their recorded time, or all at once without animation."""
    prompt = "\x1b[32m$\x1b[0m " + detail["shown"]
    lines, at, before = [(0.0, prompt)], 0.8, 0.0
    for seconds, text in detail["lines"]:
        at += min((seconds - before) / SPEED_UP, MAX_S)
        before = seconds
        lines.append((at, text))
    height = 20 * len(lines) + 24
    parts = ["<style>@keyframes show { from { opacity: 0 } } text { animation: show 1ms backwards }</style>"]
    parts.append(f'<rect width="960" height="{height}" rx="8" fill="#161b22"/>')
    for number, (delay, text) in enumerate(lines):
        place = f'x="16" y="{28 + 20 * number}" xml:space="preserve" style="animation-delay:{delay:.2f}s"'
        parts.append(f'<text {place} fill="#e6edf3" font-size="13">{"".join(text_spans(text))}</text>')
    return svg_document(960, height, "A training run that is killed and restarted", parts, MONO)


def text_spans(text: str) -> Iterable[str]:
    """Convert terminal colour codes in a line to SVG text spans."""
    pieces = STYLE.split(text)
    yield html.escape(pieces[0])
    for codes, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        fill = next((COLOURS[code] for code in codes.split(";") if code in COLOURS), "")
        weight = ' font-weight="bold"' if "1" in codes.split(";") else ""
        colour = f' fill="{fill}"' if fill else ""
        yield f"<tspan{colour}{weight}>{html.escape(piece)}</tspan>" if piece else ""


if __name__ == "__main__":
    main()
