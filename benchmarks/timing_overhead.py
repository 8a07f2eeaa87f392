"""What `trainer.timing_breakdown` costs, and whether its parts sum to the step: two arms in turns.

    python benchmarks/timing_overhead.py docs/measurements/timing-overhead.json
    python benchmarks/timing_overhead.py OUT.json --tiny       # a dry run on any machine

Arm a trains NeoBERT-250M as a run does, arm b says where the time goes besides; both write a line of metrics
every ten steps. The figure is the share of a step that b takes longer. The interval around it, the peaks, the
share of the data wait and every part of b's step stand in the details.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from measurement import write_measurement

from neobert.bench.conductor import conduct
from neobert.bench.request import Request
from neobert.config import digest, from_dict, to_dict

KEY = "timing_breakdown"
TARGET = 0.005


def arm(*, is_timed: bool, is_tiny: bool, kernels: str) -> dict[str, Any]:
    layers, hidden = (1, 64) if is_tiny else (28, 768)
    model = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": hidden // 64}
    full = {"model": {**model, "intermediate_size": 3072, "kernel_backend": kernels}}
    tiny = {"model": {**model, "intermediate_size": 64}, "tokenizer": {"vocab_size": 512}}
    return {
        **(tiny if is_tiny else full),
        "dataset": {"max_seq_length": 1024, "num_workers": 1 if is_tiny else 2},
        "trainer": {
            "per_device_train_batch_size": 1 if is_tiny else 32,
            "torch_compile": not is_tiny,
            "mixed_precision": "no" if is_tiny else "bf16",
            "logging_steps": 2 if is_tiny else 10,
            KEY: is_timed,
        },
    }


def request(*, is_tiny: bool, kernels: str, rounds: int) -> Request:
    configs = {
        name: from_dict(arm(is_timed=is_timed, is_tiny=is_tiny, kernels=kernels))
        for name, is_timed in (("a", False), ("b", True))
    }
    trim, turn = (4, 4) if is_tiny else (40, 40)
    return Request(
        arms={name: to_dict(config) for name, config in configs.items()},
        digests={name: digest(config) for name, config in configs.items()},
        differences={f"trainer.{KEY}": (False, True)},
        steps=trim + rounds * turn,
        trim=trim,
        rounds=rounds,
        data="synthetic",
        baseline=None,
    )


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--kernels", default="triton", help="model.kernel_backend on a GPU")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args(arguments)
    report = conduct(request(is_tiny=chosen.tiny, kernels=chosen.kernels, rounds=chosen.rounds))
    share, parts = 1 / report["comparison"]["ratio"] - 1, report["arms"]["b"]["parts_of_step"]
    print(f"a step takes {share:+.3%} longer, its parts sum to {parts:.4f} of it")
    return write_measurement(chosen.output, share, "share of a step", TARGET, report)


if __name__ == "__main__":
    main()
