"""Useful tokens per second of this trainer against Hugging Face's ModernBERT of the same shape, on one GPU.

    python benchmarks/against_modernbert.py WORK_DIR [--rounds 5] [--output DIR]

One process, in rounds of seconds in turn, so that the same power limit applies to all. Ours is the real
trainer's step with its data path, finite check and schedule, on the best kernels that run here. The peer is
`ModernBertForMaskedLM` with 28 blocks of 768, gated 2,048 wide, global attention everywhere, SDPA, its
decoder on masked tokens only, compiled for static shapes, fused AdamW, with its batches on the device before
timing starts. It runs in two forms and two precisions; each figure compares with the faster precision:

    padded         64 documents, one per row; the width is the expected longest of 64 documents
    concatenated   32 full rows of 1,024, without isolation of documents
    float32        weights and moments in fp32 under autocast, as ours are
    bfloat16       weights, gradients and moments in bf16: faster, and not the same training

A useful token is one of a document. Parameters and FLOPs of a token have to agree within 2 %.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import modernbert
import torch
from made_up_run import FULL, PACKED_LENGTH, Size, run_config, write_text
from measurement import write_measurement

from neobert.config.schema import RunConfig
from neobert.data.store.prepare import prepare
from neobert.objectives import resolve_step_kernels
from neobert.parallel import World
from neobert.training.loop.assembly import assemble, make_reproducible
from neobert.training.loop.signals import Signals
from neobert.training.loop.steps import run_step
from neobert.training.state.trainer import Trainer

Step = Callable[[], int]

PEER_ROWS = {"padded": 64, "concatenated": 32}  # 64 full rows together with the others need over 140 GiB
TOLERANCE = 0.02
FORMS = {"padded": modernbert.padded, "concatenated": modernbert.concatenated}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TARGETS = {"padded": 5.0, "concatenated": 2.0}
OURS = "ours"


class OurStep:
    """The trainer's step."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def __call__(self) -> int:
        before = self.trainer.progress.tokens_total
        run_step(self.trainer)
        return self.trainer.progress.tokens_total - before


def build_peers(
    config: RunConfig, device: str, backend: str = "inductor", precisions: Sequence[str] = tuple(DTYPES)
) -> dict[str, Callable[[], Step]]:
    """Return the function that builds each peer, by name."""
    prepared = prepare(config)
    store, tokenizer = prepared.train, prepared.tokenizer
    average = modernbert.padded_width(store, PEER_ROWS["padded"], PACKED_LENGTH)
    widths = {"padded": average, "concatenated": PACKED_LENGTH}

    def build(form: str, dtype: torch.dtype) -> Step:
        batches = list(FORMS[form](store, tokenizer, PEER_ROWS[form], widths[form], device))
        model = modernbert.build(config.model, tokenizer.vocab_size, tokenizer.pad_id).to(device)
        return modernbert.PeerStep(model, batches, dtype, backend)

    return {f"{form} {name}": partial(build, form, DTYPES[name]) for form in FORMS for name in precisions}


def warm_up(builders: Mapping[str, Callable[[], Step]]) -> tuple[dict[str, Step], dict[str, Any]]:
    """Build and compile all contenders; return those that work, and the errors of the others."""
    steps, notes = {}, {}
    for name, build in builders.items():
        free_memory()
        started_s = time.perf_counter()
        try:
            step = build()
            tokens = [step() for _ in range(3)]
            synchronize()
        except Exception:
            notes[name] = {"error": traceback.format_exc()[-2000:]}
            continue
        steps[name] = step
        notes[name] = {"useful_tokens": tokens, "warm_up_s": round(time.perf_counter() - started_s, 1)}
        print(name, notes[name], flush=True)
    return steps, notes


def measure(
    steps: Mapping[str, Step], rounds: int, seconds: float, keep: Callable[[dict[str, list[float]]], None]
) -> dict[str, list[float]]:
    """Return useful tokens per second of each in every round, in turns; `keep` gets them after each round."""
    gc.collect()
    gc.freeze()
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            rates[name].append(round(rate(step, seconds)))
        keep(rates)
    return rates


def rate(step: Step, seconds: float) -> float:
    """Time steps for about this long, after a warm-up step and one step that determines their number."""
    free_memory()
    step()
    lasted_s, _ = timed(step, 1)
    lasted_s, tokens = timed(step, max(1, round(seconds / lasted_s)))
    return tokens / lasted_s


def timed(step: Step, count: int) -> tuple[float, int]:
    synchronize()
    started_s = time.perf_counter()
    tokens = sum(step() for _ in range(count))
    synchronize()
    return time.perf_counter() - started_s, tokens


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free_memory() -> None:
    """Free the allocator's cache, whose blocks have other sizes for the next contender."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def shapes(ours: Any, peer: Any) -> dict[str, Any]:
    """Return parameters and FLOPs per token of a full row of both models, and their relative difference."""
    found = {
        OURS: modernbert.work(ours, (ours.decoder,), PACKED_LENGTH),
        "peer": modernbert.work(peer, (peer.decoder, peer.head.dense), PACKED_LENGTH),
    }
    pairs = zip(found[OURS].values(), found["peer"].values(), strict=True)
    return {**found, "apart": max(abs(a / b - 1) for a, b in pairs)}


def figures(rates: Mapping[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Return, for each form, the faster peer and our throughput relative to it."""
    medians = {name: statistics.median(values) for name, values in rates.items()}
    found = {}
    for form in FORMS:
        peers = {name: value for name, value in medians.items() if name.startswith(form)}
        best = max(peers, key=lambda name: peers[name], default=None)
        ratio = None if best is None else medians[OURS] / peers[best]
        found[form] = {"ratio": ratio, "peer": best, "medians": medians}
    return found


def contest(
    work: Path,
    size: Size,
    rounds: int,
    seconds: float,
    backend: str,
    precisions: Sequence[str] = tuple(DTYPES),
    keep: Callable[[dict[str, list[float]]], None] = lambda _: None,
) -> dict[str, Any]:
    """Build all, measure them in turns, and return the results."""
    run_dir = work / "against-modernbert"
    run_dir.mkdir(exist_ok=True)
    config = run_config(work, run_dir, size, steps=10_000)
    world = World(config.trainer.mixed_precision)
    make_reproducible(config, world)
    trainer = assemble(config, run_dir, world, Signals(), None)
    peers = build_peers(config, world.device.type, backend, precisions)
    try:
        steps, notes = warm_up({OURS: lambda: OurStep(trainer), **peers})
        rates = measure(steps, rounds, seconds, keep)
        trainer.guard.check()
    finally:
        trainer.batches.close()
    kernels = resolve_step_kernels(config, world.device.type, world.compute_dtype)
    any_peer = next(step for name, step in steps.items() if name != OURS)
    return {
        "figures": figures(rates),
        "shapes": shapes(trainer.task.model, any_peer.model),
        "rates": rates,
        "notes": notes,
        "kernels": kernels.name,
        "attention_kernel": kernels.attention,
        "peer_attention": any_peer.model.config._attn_implementation,
        "losses": {name: float(step.loss) for name, step in steps.items() if name != OURS},
    }


def write_figures(
    folder: Path, found: Mapping[str, dict[str, Any]], detail: dict[str, Any], *, is_complete: bool
) -> None:
    for form, figure in found.items():
        path = folder / f"vs-hf-{form}.json"
        detail_of_form = {**figure, **detail}
        write_measurement(
            path, figure["ratio"], "ratio", TARGETS[form], detail_of_form, is_complete=is_complete
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.5, help="of each contender in a round")
    parser.add_argument(
        "--precisions", nargs="+", choices=list(DTYPES), default=list(DTYPES), help="of the peer"
    )
    parser.add_argument("--output", type=Path, help="folder of the JSON files")
    chosen = parser.parse_args()
    work = chosen.work.resolve()
    write_text(work, FULL)

    def keep(rates: dict[str, list[float]]) -> None:
        if chosen.output:
            write_figures(chosen.output, figures(rates), {"rates": rates}, is_complete=False)

    found = contest(work, FULL, chosen.rounds, chosen.seconds, "inductor", chosen.precisions, keep)
    print(json.dumps(found, indent=1))
    if found["shapes"]["apart"] > TOLERANCE:
        sys.exit("parameters or FLOPs of the two models are more than 2 % apart")
    if chosen.output:
        write_figures(chosen.output, found.pop("figures"), found, is_complete=True)


if __name__ == "__main__":
    main()
