"""Train NeoBERT-250M with the real trainer on one GPU, once for each kernel backend, in one run.

    python benchmarks/trainer_throughput.py WORK_DIR                       # fused, triton, torch
    python benchmarks/trainer_throughput.py WORK_DIR --kernels triton --steps 100 --output FILE.json
    python benchmarks/trainer_throughput.py WORK_DIR --tiny                # a dry run on any machine

Documents of made-up words, lengths from a lognormal (median 150 tokens, sigma 0.86, cut at 1,024), tokenised
and packed by the project into T = 32,768; every run reads the same prepared data. Each is
`python -m neobert.train` in a process of its own. Tokens a second and MFU are the medians of the lines of
`metrics.jsonl` in the second half of the run, behind compilation; MFU is of the data sheet's peak. A short
run before (--steps 4) fills the compilers' caches.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from neobert.config import digest, from_dict, to_dict
from neobert.receipt import Receipt, utc_now, write_receipt

NUM_WORDS, NUM_DOCUMENTS, LOGGING_STEPS = 30_500, 24_000, 10
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "bcdfghjklmnpqrstvwxz"


def word(index: int) -> str:
    """Spell a number with four letters."""
    base = len(LETTERS)
    return "".join(LETTERS[index // base**place % base] for place in range(4))


def write_tokenizer(path: Path) -> None:
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *map(word, range(NUM_WORDS))])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(path))


def write_documents(path: Path, count: int) -> None:
    """Draw words by rank, a few of them often, so that there is something to learn."""
    draw = random.Random(0)
    words = [word(index) for index in range(NUM_WORDS)]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            length = min(1022, max(6, round(math.exp(draw.gauss(math.log(150), 0.86)))))
            chosen = (words[int(NUM_WORDS * draw.random() ** 3)] for _ in range(length))
            file.write(json.dumps({"text": " ".join(chosen)}) + "\n")


def run_config(
    work: Path, run_dir: Path, kernels: dict[str, str], steps: int, is_tiny: bool
) -> dict[str, Any]:
    layers, hidden = (2, 128) if is_tiny else (28, 768)
    model = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": hidden // 64}
    return {
        "model": {**model, "intermediate_size": 4 * hidden, **kernels},
        "tokenizer": {"path": str(work / "tokenizer.json"), "allow_special_token_rewrite": True},
        "dataset": {
            "path": str(work / "documents.jsonl"),
            "cache_dir": str(work / "cache"),
            "num_workers": 2,
            "max_seq_length": 1024,
        },
        "scheduler": {"warmup_steps": steps // 5},
        "trainer": {
            "output_dir": str(run_dir),
            "max_steps": steps,
            "per_device_train_batch_size": 1 if is_tiny else 32,
            "torch_compile": not is_tiny,
            "mixed_precision": "no" if is_tiny else "bf16",
            "logging_steps": 1 if is_tiny else LOGGING_STEPS,
            "save_steps": 0,
            "eval_steps": 0,
        },
    }


def write_run(run_dir: Path, content: dict[str, Any]) -> None:
    config = from_dict(content)
    run_dir.mkdir()
    (run_dir / "resolved.json").write_text(json.dumps(to_dict(config)), encoding="utf-8")
    now = utc_now()
    receipt = Receipt(
        config_digest=digest(config), profile="", code_version="", created_utc=now.isoformat(),
        expires_utc=(now + timedelta(hours=2)).isoformat(), verdict="pass", levels=("static",), checks=(),
        waivers=(), hostname="", versions={},
    )  # fmt: skip
    write_receipt(receipt, run_dir / "receipt.json")


def train(run_dir: Path) -> dict[str, Any]:
    """Run the trainer in a process of its own; return what its metrics say."""
    command = [sys.executable, "-m", "neobert.train", str(run_dir / "resolved.json")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    (run_dir / "output.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        return {"error": (done.stdout + done.stderr)[-3000:]}
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "train/loss" in line]
    late = [line for line in lines if line["step"] > lines[-1]["step"] // 2]
    return {
        "kernels": next((line for line in done.stdout.splitlines() if "kernels: " in line), ""),
        "attention_kernel": last_beat(run_dir)["attention_kernel"],
        "gpu_mem_reserved_mib": last_beat(run_dir)["gpu_mem_reserved_mib"],
        **{name: median(late, name) for name in ("train/tokens_per_sec", "perf/mfu", "time/data_wait_ms")},
        "losses": [line["train/loss"] for line in lines],
        "tokens_per_sec": [line["train/tokens_per_sec"] for line in lines],
    }


def last_beat(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "heartbeat_rank0.jsonl").read_text().splitlines()[-1])


def median(lines: list[dict[str, Any]], name: str) -> float | None:
    values = [line[name] for line in lines]
    return None if None in values else statistics.median(values)


KERNELS = {
    "fused": {"kernel_backend": "fused"},
    "triton": {"kernel_backend": "triton"},
    "torch": {"kernel_backend": "torch", "attn_backend": "auto"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--kernels", nargs="+", choices=list(KERNELS), default=list(KERNELS))
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    work = chosen.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "documents.jsonl").exists():
        write_tokenizer(work / "tokenizer.json")
        write_documents(work / "documents.jsonl", 200 if chosen.tiny else NUM_DOCUMENTS)
    results = {}
    for name in chosen.kernels:
        run_dir = work / f"{name}-{chosen.steps}"
        write_run(run_dir, run_config(work, run_dir, KERNELS[name], chosen.steps, chosen.tiny))
        results[name] = train(run_dir)
        print(name, json.dumps(results[name], indent=1), flush=True)
    if chosen.output:
        chosen.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
