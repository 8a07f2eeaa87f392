"""Memory and speed of profile long-context in rows of 1,024 to 16,384 tokens, measured and predicted.

    python benchmarks/row_lengths.py [--lengths 4096 16384 ...] [--output DIR] [--tiny]

Random weights, documents that fill their rows, microbatches of 16,384 tokens, one in a step. The arms of
`bench` of three lengths start and compile at the same time; then one after another has three turns, while the
others wait. The prediction is that of `plan` for the same card. About 120 s on an H100 with 60 GiB.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measurement import write_measurement

from neobert.bench.conductor import Worker, rates
from neobert.config import to_dict
from neobert.errors import ProjectError
from neobert.plan import assumptions_for, build_plan
from profiles.registry import resolve_run

PROFILE, TOKENS = "long-context", 16_384
LENGTHS = (4_096, 16_384, 1_024, 8_192, 2_048)
"""The most telling first."""
TOGETHER = 3
"""Arms whose memory one card has room for."""
WARM_UP, TURNS, STEPS = 6, 3, 12
TINY = (
    "model.hidden_size=64", "model.num_hidden_layers=2", "model.num_attention_heads=1",
    "model.intermediate_size=128", "model.vocab_size=1024", "model.kernel_backend=torch",
    "model.attn_backend=sdpa", "trainer.mixed_precision=no", "trainer.torch_compile=false",
)  # fmt: skip


def keys(length: int, *, is_tiny: bool) -> list[str]:
    tokens = 1_024 if is_tiny else TOKENS
    return [
        *("model.pretrained_checkpoint=null", "pretraining=null"),
        *(f"dataset.max_seq_length={length}", f"dataset.min_length={length}"),
        f"trainer.per_device_train_batch_size={max(1, tokens // length)}",
        *("trainer.gradient_accumulation_steps=1", "trainer.global_batch_size=null"),
        *(TINY if is_tiny else ()),
    ]


def predicted(length: int, *, is_tiny: bool) -> dict[str, Any]:
    """Return the card, memory and tokens per second that `plan` states for a profile that names this card."""
    run = resolve_run(PROFILE, [], keys(length, is_tiny=is_tiny))
    assert run.profile is not None
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    device = assumptions_for(card, None, run.profile.expects.mfu)
    plan = build_plan(run.config, device)
    return {
        "device": device.device_name,
        "memory_mib": round(plan.memory_mib.value),
        "tokens_per_second": round(plan.tokens_per_second.value),
    }


def measured(worker: Worker, about: Mapping[str, Any]) -> dict[str, Any]:
    turns = [worker.call("turn", count=STEPS) for _ in range(TURNS)]
    end = worker.call("finish")
    share = [turn["flops"] / turn["seconds"] / turn["peak_flops_per_s"] for turn in turns]
    total, percent = (end["memory"].get(name) for name in ("gpu_mem_total_mib", "memory/peak_percent"))
    return {
        "attention_kernel": about["attention_kernel"],
        "tokens_per_second": round(median(rates(turns))),
        "rates": [round(each) for each in rates(turns)],
        "mfu_of_measured_peak": round(median(share), 4),
        "peak_memory_mib": round(total * percent / 100) if total and percent else None,
        "memory": end["memory"],
    }


def of_lengths(lengths: Sequence[int], *, is_tiny: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the figures of each length, or its error, when they are there."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = {}
        for length in lengths:
            path = folder / str(length) / "arm.json"
            path.parent.mkdir()
            config = resolve_run(PROFILE, [], keys(length, is_tiny=is_tiny)).config
            path.write_text(json.dumps(to_dict(config)), encoding="utf-8")
            workers[length] = stack.enter_context(closing(Worker(str(length), path, "synthetic")))
        pool = stack.enter_context(ThreadPoolExecutor(len(lengths)))
        ready = {length: pool.submit(begin, worker) for length, worker in workers.items()}
        for each in ready.values():
            each.exception()  # all have compiled before one is measured
        for length, worker in workers.items():
            try:
                row = measured(worker, ready[length].result())
            except ProjectError as error:
                row = {"error": str(error)}
            worker.close()
            yield length, row | {"predicted": predicted(length, is_tiny=is_tiny)}


def begin(worker: Worker) -> dict[str, Any]:
    about = worker.call("describe")
    worker.call("warm_up", count=WARM_UP)
    return about


def line(length: int, row: Mapping[str, Any]) -> str:
    plan = row["predicted"]
    reported = f"{plan['tokens_per_second']:,.0f} tokens/s, {plan['memory_mib']:,.0f} MiB on {plan['device']}"
    if "error" in row:
        return f"{length:6,}  {row['error']}; predicted {reported}"
    found = f"{row['tokens_per_second']:,} tokens/s, {row['peak_memory_mib']} MiB, {row['attention_kernel']}"
    return f"{length:6,}  {found}; predicted {reported}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--tiny", action="store_true", help="a dry run on a CPU")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    rows: dict[str, Any] = {}
    for first in range(0, len(chosen.lengths), TOGETHER):
        some = chosen.lengths[first : first + TOGETHER]
        for length, row in of_lengths(some, is_tiny=chosen.tiny):
            rows[str(length)] = row
            print(line(length, row), flush=True)
            if chosen.output:
                write(chosen.output, rows, is_complete=len(rows) == len(chosen.lengths))


def write(folder: Path, rows: dict[str, Any], *, is_complete: bool) -> None:
    value = rows.get("4096", {}).get("tokens_per_second")
    unit = f"tokens/s of profile {PROFILE} in rows of 4,096, which documents fill"
    detail = {"tokens_per_microbatch": TOKENS, "rows": rows}
    write_measurement(folder / "long-context-rows.json", value, unit, None, detail, is_complete=is_complete)


if __name__ == "__main__":
    main()
