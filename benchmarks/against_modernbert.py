"""Useful tokens per second of this trainer against Hugging Face's ModernBERT of the same shape, on one GPU.

    python benchmarks/against_modernbert.py WORK_DIR [--peers ...] [--output DIR]

One process, in rounds of seconds in turn, so that the same power limit applies to all. Ours is the real
trainer's step with its data path, finite check and schedule, once for each of `--kernels`; `torch` is the
control: the same trainer on torch's modules. The peer is `ModernBertForMaskedLM` with 28 blocks of 768, gated
2,048 wide, global attention everywhere, its decoder on masked tokens only, compiled, fused AdamW, with its
batches on the device before timing starts. A step of either side has 32,768 tokens. The peer runs in three
forms and two precisions; each figure compares with the faster precision:

    concatenated   full rows of 1,024, without isolation of documents
    grouped        a document per row, padded, in batches of similar length
    flattened      documents packed into one row with their boundaries, each isolated, as ours are
    float32        weights and moments in fp32 under autocast, as ours are
    bfloat16       weights, gradients and moments in bf16: faster, and not the same training

The peer's attention is the fastest of `peers.attention.CANDIDATES`. One step of every side is profiled: a
peer whose attention is dense math is not measured, and the exit code is then 1. A useful token is one of a
document. Parameters and FLOPs of a token have to agree within 2 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from made_up_run import FULL, PACKED_LENGTH, RunSize, run_config, write_text
from measurement import write_measurement
from peers import batches, modernbert
from peers.attention import CANDIDATES, fastest_candidate
from peers.kernels import record_kernels, require_fused_attention, summarize_kernels
from peers.turns import Step, free_memory, measure_rates, relative_throughput, synchronize

from neobert.config.schema import RunConfig
from neobert.data.store.prepare import prepare
from neobert.parallel import World
from neobert.precision.recipe import BF16, FP32
from neobert.training.loop.assembly import assemble, make_reproducible
from neobert.training.loop.signals import Signals
from neobert.training.loop.steps import run_step
from neobert.training.state.trainer import Trainer

TOLERANCE = 0.02
FORMS = {
    "concatenated": batches.concatenated_batches,
    "grouped": batches.grouped_batches,
    "flattened": batches.flattened_batches,
}
FIGURES = {"concatenated": "vs-hf-concatenated", "grouped": "vs-hf-padded", "flattened": "vs-hf-flattened"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ORDER = (
    "concatenated float32",
    "grouped float32",
    "concatenated bfloat16",
    "flattened float32",
    "grouped bfloat16",
    "flattened bfloat16",
)
"""Peers by importance."""
OURS, CONTROL = "ours", "torch"


class OurStep:
    """One optimizer step of this project's trainer."""

    cycle = 1

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.model = trainer.task.model

    def __call__(self) -> int:
        before = self.trainer.progress.tokens_total
        run_step(self.trainer)
        return self.trainer.progress.tokens_total - before


def build_ours(work: Path, size: RunSize, kernels: str, world: World) -> tuple[Step, RunConfig]:
    """Return the trainer's step with these kernels, not compiled yet, and its config."""
    run_dir = work / f"against-modernbert-{kernels}"
    run_dir.mkdir(exist_ok=True)
    config = run_config(work, run_dir, size, steps=10_000, kernel_backend=kernels, attn_backend="auto")
    make_reproducible(config, world)
    return OurStep(assemble(config, run_dir, world, Signals(), None)), config


def build_peers(
    config: RunConfig, device: str, backend: str = "inductor", names: Sequence[str] = ORDER
) -> tuple[dict[str, Callable[[], Step]], dict[str, Any]]:
    """Return a builder per peer, by name, and the attention candidates measured for each batch form."""
    prepared = prepare(config)
    store, tokenizer = prepared.train, prepared.tokenizer
    width = config.dataset.max_seq_length
    tokens, heads = width * config.trainer.per_device_train_batch_size, config.model.num_attention_heads
    chosen, candidates = {}, {}
    for form in {name.partition(" ")[0]: None for name in names}:
        chosen[form], candidates[form] = fastest_candidate(form, heads, tokens, width, device)

    def build(form: str, dtype: torch.dtype) -> Step:
        drawn = list(FORMS[form](store, tokenizer, tokens, width, device))
        implementation = CANDIDATES[chosen[form]].implementation
        model = modernbert.build_modernbert(
            config.model, tokenizer.vocab_size, tokenizer.pad_id, implementation
        )
        return modernbert.PeerStep(model.to(device), drawn, dtype, backend, chosen[form])

    parts = {name: name.partition(" ") for name in names}
    return {name: partial(build, form, DTYPES[dtype]) for name, (form, _, dtype) in parts.items()}, {
        form: {"fastest": chosen[form], "milliseconds": candidates[form]} for form in chosen
    }


def warm_up(
    builders: Mapping[str, Callable[[], Step]], num_layers: int
) -> tuple[dict[str, Step], dict[str, Any]]:
    """Build, compile and profile all sides; return the working ones, and notes about all.

    A peer with dense attention is left out, and its note has the error.
    """
    steps, notes = {}, {}
    for name, build in builders.items():
        free_memory()
        started_s = time.perf_counter()
        try:
            step = build()
            tokens = [step() for _ in range(max(3, getattr(step, "cycle", 1)))]
            synchronize()
            notes[name] = {"useful_tokens": tokens, "warm_up_s": round(time.perf_counter() - started_s, 1)}
            kernels = record_kernels(step)
            notes[name] |= {"kernels": summarize_kernels(kernels)}
            if not name.startswith(OURS):
                notes[name] |= {"attention": require_fused_attention(kernels, num_layers)}
        except Exception:
            notes[name] = notes.get(name, {}) | {"error": traceback.format_exc()[-2000:]}
            print(name, notes[name]["error"], flush=True)
            continue
        steps[name] = step
        print(f"{name}: {notes[name]['warm_up_s']} s, {notes[name]['kernels']['attention']}", flush=True)
    return steps, notes


def rate_figures(rates: Mapping[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Return, for each form, the faster peer and the throughput of both of our sides relative to it.

    Ratios are medians over the rounds, with minimum and maximum.
    """
    medians = {name: round(statistics.median(values)) for name, values in rates.items() if values}
    ours = [name for name in medians if name.startswith(OURS)]
    best_of_ours = max(ours, key=lambda name: medians[name])
    found = {}
    for form in FORMS:
        peers = [name for name in medians if name.startswith(form)]
        if not peers:
            continue
        best = max(peers, key=lambda name: medians[name])
        ratios = {name: relative_throughput(rates[name], rates[best]) for name in ours}
        found[form] = {
            "ratio": ratios[best_of_ours]["median"],
            "peer": best,
            "ratios": ratios,
            "medians": medians,
        }
    return found


def compare_throughput(
    work: Path,
    size: RunSize,
    rounds: int,
    seconds: float,
    backend: str,
    kernels: Sequence[str] = ("triton", CONTROL),
    names: Sequence[str] = ORDER,
    keep: Callable[[dict[str, list[float]], dict[str, Any]], None] = lambda *_: None,
) -> dict[str, Any]:
    """Build both sides, measure them in alternating rounds, and return the figures."""
    world = World(BF16 if size.is_full else FP32)
    ours = {f"{OURS} {name}": build_ours(work, size, name, world) for name in kernels}
    config = next(iter(ours.values()))[1]
    peers, candidates = build_peers(config, world.device.type, backend, names)
    print("attention, ms forward and backward:", json.dumps(candidates), flush=True)
    builders: dict[str, Callable[[], Step]] = {
        name: partial(lambda step: step, step) for name, (step, _) in ours.items()
    }
    control = builders.pop(f"{OURS} {CONTROL}", None)
    first, *others = peers.items()
    builders |= dict([first]) | ({f"{OURS} {CONTROL}": control} if control else {}) | dict(others)
    detail: dict[str, Any] = {"candidates": candidates}
    try:
        steps, notes = warm_up(builders, size.num_layers)
        models = {name: step.model for name, step in steps.items()}
        detail |= {"notes": notes, "shapes": model_shapes(models)}
        detail["own_kernels"] = {name: notes[name]["kernels"] for name in steps if name.startswith(OURS)}
        detail["peer_kernels"] = {name: notes[name]["kernels"] for name in steps if not name.startswith(OURS)}
        for name in steps:
            del notes[name]["kernels"]
        rates = measure_rates(steps, rounds, seconds, lambda so_far: keep(so_far, detail))
        for step, _ in ours.values():
            step.trainer.guard.check()
    finally:
        for step, _ in ours.values():
            step.trainer.batches.close()
    return {
        "figures": rate_figures(rates),
        **detail,
        "rates": rates,
        "losses": {name: float(step.loss) for name, step in steps.items() if not name.startswith(OURS)},
    }


def model_shapes(models: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters and FLOPs per token of both models, and the largest relative difference (`apart`).

    Without a peer, return only our model's figures.
    """
    ours = next(model for name, model in models.items() if name.startswith(OURS))
    peer = next((model for name, model in models.items() if not name.startswith(OURS)), None)
    found = {OURS: modernbert.count_parameters_and_flops(ours, (ours.decoder,), PACKED_LENGTH)}
    if peer is None:
        return found
    found["peer"] = modernbert.count_parameters_and_flops(
        peer, (peer.decoder, peer.head.dense), PACKED_LENGTH
    )
    pairs = zip(found[OURS].values(), found["peer"].values(), strict=True)
    return {**found, "apart": max(abs(a / b - 1) for a, b in pairs)}


def write_figures(
    folder: Path, figures: Mapping[str, dict[str, Any]], detail: dict[str, Any], *, is_complete: bool
) -> None:
    for form, figure in figures.items():
        path = folder / f"{FIGURES[form]}.json"
        write_measurement(path, figure["ratio"], "ratio", None, {**figure, **detail}, is_complete=is_complete)


def format_table(report: Mapping[str, Any]) -> str:
    """Format one line per side: useful tokens per second and attention kernel."""
    lines = [f"{'':24}{'tokens/s':>10}  attention"]
    for name, values in report["rates"].items():
        attention = (report["own_kernels"] | report["peer_kernels"])[name]["attention"]
        lines.append(f"{name:24}{statistics.median(values):10,.0f}  {', '.join(attention)}")
    for form, figure in report["figures"].items():
        for name, ratio in figure["ratios"].items():
            text = "{median:.2f} ({least:.2f} to {greatest:.2f})".format(**ratio)
            lines.append(f"{name} / {figure['peer']} ({form}): {text}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--round-seconds", type=float, default=2.5, help="seconds of each side per round")
    parser.add_argument("--kernels", nargs="+", default=["triton", CONTROL], help="kernels of this trainer")
    parser.add_argument("--peers", nargs="+", choices=ORDER, default=list(ORDER))
    parser.add_argument("--output", type=Path, help="folder for the JSON files")
    chosen = parser.parse_args()
    work = chosen.work.resolve()
    write_text(work, FULL)

    def keep(rates: dict[str, list[float]], detail: dict[str, Any]) -> None:
        if chosen.output:
            write_figures(chosen.output, rate_figures(rates), {**detail, "rates": rates}, is_complete=False)

    found = compare_throughput(
        work,
        FULL,
        chosen.rounds,
        chosen.round_seconds,
        "inductor",
        chosen.kernels,
        chosen.peers,
        keep,
    )
    print(format_table(found))
    if found["shapes"].get("apart", 0.0) > TOLERANCE:
        sys.exit(f"parameters or FLOPs of the two models are more than {TOLERANCE:.0%} apart")
    if chosen.output:
        write_figures(chosen.output, dict(found.pop("figures")), found, is_complete=True)
    if failed := [name for name, note in found["notes"].items() if "error" in note]:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
