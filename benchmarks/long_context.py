"""A model of rows of 1,024 continued on rows of 4,096: key words found by both, losses, speed; on one device.

    python benchmarks/long_context.py DATA WORK [--output DIR] [--tiny]

DATA has `*.txt.gz`, such as novels: 8 MB. Both texts are made of their sentences and of the words of a
tokenizer trained on them (`stated_twice.py`). A parent of 8 x 512 is trained by the defaults of profile gpu,
without its warm-up of lengths, and continued by `train --from PARENT --context 4096`; `evaluate passkey`
tests both. WORK is a new folder. About 290 s on an H100: 30 of the text, 95 of the parent, 125 of the
continuation, 40 of the tests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from measurement import write_measurement
from stated_twice import LONG, SHORT, Corpus, sentences_of, words_of, write_text

from neobert.metric_names import EVAL, PACE
from neobert.training.telemetry.jsonl_writer import iter_rows

ACCURACY = 0.9
"""Least share of key words that the continued model is to find, from 1,024 tokens on."""


class Size(NamedTuple):
    """Documents and steps of the parent and of the continuation; the parent's rows of 1,024 in a step."""

    documents: tuple[int, int]
    steps: tuple[int, int]
    rows: int
    lengths: str
    trials: int
    model: dict[str, int]
    device: str


FULL = Size(
    (32_000, 8_000), (2_900, 2_600), 32, "512,1k,2k,3k,4k", 40,
    {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 2048}, "gpu",
)  # fmt: skip
TINY = Size(
    (60, 30), (2, 1), 1, "128,1k", 1,
    {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 128}, "cpu",
)  # fmt: skip


def launcher(work: Path, name: str, *words: object) -> None:
    """Run a command of the project. A failure ends the program with the end of its output."""
    command, log = [sys.executable, "-m", "launcher", *map(str, words)], work / f"{name}.log"
    with log.open("w") as file:
        done = subprocess.run(command, cwd=work, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"{name} ended with {done.returncode}:\n{log.read_text(errors='replace')[-3000:]}")


def write_texts(data: Path, work: Path, size: Size) -> None:
    """Train the tokenizer on the sentences, and write the text of the parent and of the continuation."""
    sentences, vocabulary = sentences_of(data), 8_192 if size.device == "gpu" else 1_024
    text = work / "sentences.txt"
    text.write_text("\n\n".join(sentences), encoding="utf-8")
    keys = ("--dataset.path", text, "--tokenizer.vocab_size", vocabulary, "--tokenizer.lowercase", "true")
    launcher(work, "tokenizer", "tokenizer", "train", "-p", size.device, *keys, "-o", work / "tokenizer")
    corpus = Corpus(sentences, words_of(work / "tokenizer"))
    for name, kind, count in zip(("short", "long"), (SHORT, LONG), size.documents, strict=True):
        write_text(corpus, work / f"{name}.jsonl", kind, count)


def train_parent(work: Path, size: Size) -> Path:
    """Train on rows of 1,024; return the run directory."""
    run, last = work / "parent", size.steps[0]
    settings = {
        "profile": size.device,
        "model": size.model,
        "tokenizer": {"path": str(work / "tokenizer")},
        "dataset": {"path": str(work / "short.jsonl"), "max_seq_length": 1_024, "validation_split": 0.1},
        "trainer": {
            "output_dir": str(run),
            "max_steps": last,
            **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), size.rows),
            **dict.fromkeys(("save_steps", "eval_steps"), last),
            "eval_max_batches": 8,
            # Pieces of 64 tokens hold a statement once.
            **({"sequence_length_warmup_percent": None} if size.device == "gpu" else {}),
        },
    }
    (work / "parent.yaml").write_text(json.dumps(settings), encoding="utf-8")
    reason = "benchmark: a run of a minute"
    launcher(work, "parent-train", "train", work / "parent.yaml", "-q", "--unguarded", reason)
    return run


def continue_run(work: Path, parent: Path, size: Size) -> Path:
    """Continue on rows of 4,096; return the run directory."""
    run, last = work / "continued", size.steps[1]
    keys = {
        "trainer.output_dir": run,
        **dict.fromkeys(("trainer.max_steps", "trainer.save_steps", "trainer.eval_steps"), last),
    }
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    text = ("--context", 4_096, "--text", work / "long.jsonl")
    reason = ("--unguarded", "benchmark: tiny") if size is TINY else ()
    launcher(work, "continued-train", "train", "--from", parent, *text, "-q", *words, *reason)
    return run


def passkey(work: Path, run: Path, size: Size) -> dict[str, Any]:
    """Return accuracy by length, by length and depth, and chance."""
    output = work / f"{run.name}-passkey"
    words = (run, "--lengths", size.lengths, "--trials", size.trials, "-o", output)
    launcher(work, f"{run.name}-passkey", "evaluate", "passkey", *words)
    report = json.loads((output / "passkey.json").read_text(encoding="utf-8"))
    return {key: report[key] for key in ("accuracy", "by_depth", "chance")}


def telemetry(run: Path) -> dict[str, Any]:
    """Return the losses of all evaluations, and the median of the tokens per second."""
    rows = list(iter_rows(run / "metrics.jsonl"))
    losses = [
        {"step": row["step"]} | {key: row[key] for key in row if key.startswith(EVAL) and "loss" in key}
        for row in rows
        if any(key.startswith(EVAL) for key in row)
    ]
    paces = sorted(row[PACE] for row in rows if PACE in row)
    return {"evaluations": losses, "tokens_per_second": paces[len(paces) // 2] if paces else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a dry run on a CPU")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    size, work = TINY if chosen.tiny else FULL, chosen.work.resolve()
    output = chosen.output and chosen.output.resolve()
    if work.exists() and any(work.iterdir()):
        parser.error(f"WORK is not empty: {work}")
    work.mkdir(parents=True, exist_ok=True)
    detail: dict[str, Any] = {"settings": size._asdict()}
    write_texts(chosen.data, work, size)
    runs = [train_parent(work, size)]
    detail["parent"] = telemetry(runs[0]) | passkey(work, runs[0], size)
    report(output, detail, is_complete=False)
    runs.append(continue_run(work, runs[0], size))
    detail["continued"] = telemetry(runs[1]) | passkey(work, runs[1], size)
    report(output, detail, is_complete=True)


def report(output: Path | None, detail: dict[str, Any], *, is_complete: bool) -> None:
    """Print what is known; write it if there is a folder for it."""
    for name in ("parent", "continued"):
        if name in detail:
            print(name, json.dumps(detail[name]), flush=True)
    found = detail.get("continued", {}).get("accuracy", {})
    worst = min((share for length, share in found.items() if int(length) >= 1_024), default=None)
    if output is not None:
        unit = "accuracy of key words in the continued model, the least of 1,024 to 4,096 tokens"
        write_measurement(
            output / "long-context.json", worst, unit, ACCURACY, detail, is_complete=is_complete
        )


if __name__ == "__main__":
    main()
