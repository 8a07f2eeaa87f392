"""Cost of text in parts: join and start of many parts, peak memory of one, wait for data of the trainer.

    python benchmarks/data_parts.py WORK_DIR                       # 1,000 tiny parts against one; memory
    python benchmarks/data_parts.py WORK_DIR --train --output DIR  # and the trainer on 64 parts made here
    python benchmarks/data_parts.py WORK_DIR --train --tiny        # a dry run on any machine

Join and start are child processes, imports included: `data join`, and what a run's checks do with its data.
Later starts find the checksums of the first; of several tries, the fastest counts. The memory is that of the
process that prepares part 1 of 2, for a text and for ten times the text. The trainer runs as in
`trainer_throughput.py`, which has its model and its text. With --output, `data-parts.json` has the wait for
data, null without --train, and the rest.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from made_up_run import (
    FULL,
    PACKED_LENGTH,
    TINY,
    documents_path,
    lengths,
    run_config,
    word,
    write_run,
    write_text,
)
from measurement import write_measurement
from trainer_throughput import KERNELS, train

from neobert.config import to_dict
from neobert.config.schema import RunConfig
from neobert.data.batches.shape import segment_length
from neobert.data.sources.blocks import blocks_of
from neobert.data.sources.file_digests import size_and_ends
from neobert.data.store.part_writer import BlockRows, PartSplit, PartWriter
from neobert.data.store.prepare import open_request
from neobert.runfiles.prepared_parts import PartNumber

TARGET_WAIT_SHARE, TARGET_JOIN_S, TARGET_START_S, TARGET_GROWTH = 0.01, 10.0, 5.0, 1.1
TINY_DOCUMENTS, TRIES = 4, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--parts", type=int, default=1000)
    parser.add_argument("--memory-mb", type=int, default=10, help="size of the smaller text")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--train-parts", type=int, default=64)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    work, size = chosen.work.resolve(), TINY if chosen.tiny else FULL
    write_text(work, size)
    detail: dict[str, Any] = {"many_parts": many_parts(work, chosen.parts)}
    detail["memory_of_a_part"] = memory_of_a_part(work, chosen.memory_mb)
    share = None
    if chosen.train:
        detail["trainer"] = trained_on_parts(work, size, chosen.train_parts, chosen.steps)
        share = detail["trainer"].get("perf/data_wait_share")
    print(json.dumps(detail, indent=1))
    if chosen.output:
        file = chosen.output / "data-parts.json"
        write_measurement(
            file, share, "share of a step's time that waits for data", TARGET_WAIT_SHARE, detail
        )


def many_parts(work: Path, num_parts: int) -> dict[str, Any]:
    """Return the seconds to join and to start from `num_parts` parts, and from one, of the same text."""
    text = work / f"tiny-{num_parts}"
    write_files(text, num_parts, TINY_DOCUMENTS * 100)
    config = with_text(run_config(work, work / "run", TINY, steps=10), text)
    found: dict[str, Any] = {"parts": num_parts, "target_join_s": TARGET_JOIN_S}
    for number in (1, num_parts):
        folder = work / f"parts-{number}-of-tiny"
        shutil.rmtree(folder, ignore_errors=True)
        write_parts(config, folder, number)
        measured = {"join": best([child("join", work, {"folder": str(folder)}) for _ in range(TRIES)])}
        reading = to_dict(replace(config, dataset=replace(config.dataset, cache_dir=str(folder))))
        time.sleep(3)  # younger files are read again by the next start
        measured["first_start"] = child("inspection", work, reading)
        measured["start"] = best([child("inspection", work, reading) for _ in range(TRIES)])
        found[f"{number}"] = measured
    one, many = found["1"], found[f"{num_parts}"]
    for name in ("first_start", "start"):
        found[f"{name}_above_one_s"] = round(many[name]["seconds"] - one[name]["seconds"], 2)
    return found | {"target_start_above_one_s": TARGET_START_S}


def best(tries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fastest: other programs only add time."""
    return min(tries, key=lambda each: each["seconds"])


def memory_of_a_part(work: Path, megabytes: int) -> dict[str, Any]:
    """Return the peak memory of the process that prepares a part, for a text and for ten times the text."""
    found: dict[str, Any] = {}
    for times in (1, 10):
        text, folder = work / f"text-{times}", work / f"memory-{times}"
        shutil.rmtree(folder, ignore_errors=True)
        write_files(text, 4, megabytes * times * 1_000_000 // (4 * 5))
        config = with_text(run_config(work, work / "run", TINY, steps=10), text)
        measured = child("part", work, to_dict(config), str(folder), "1/2")
        found[f"{times}x"] = {"text_mb": megabytes * times} | measured
    growth = found["10x"]["peak_mib"] / found["1x"]["peak_mib"]
    return found | {"growth": round(growth, 3), "target_growth": TARGET_GROWTH}


def trained_on_parts(work: Path, size: Any, num_parts: int, steps: int) -> dict[str, Any]:
    """Prepare the text of a run in parts on this machine, and train on them."""
    text, folder = work / f"split-{size.text_tokens}", work / f"parts-{size.text_tokens}"
    text.mkdir(exist_ok=True)
    files = [(text / f"{number:03}.jsonl").open("w", encoding="utf-8") for number in range(num_parts)]
    with documents_path(work, PACKED_LENGTH).open(encoding="utf-8") as documents:
        for number, line in enumerate(documents):
            files[number % num_parts].write(line)
    for file in files:
        file.close()
    run_dir = work / f"parts-{time.time_ns()}"
    kernels = {} if size is TINY else KERNELS["fused"]
    logging_steps = 1 if size is TINY else 10
    config = run_config(work, run_dir, size, steps=steps, logging_steps=logging_steps, **kernels)
    config = with_text(config, text)
    shutil.rmtree(folder, ignore_errors=True)
    write_parts(config, folder, num_parts)
    child("join", work, {"folder": str(folder)})
    write_run(run_dir, replace(config, dataset=replace(config.dataset, cache_dir=str(folder))))
    return {"parts": num_parts} | train(run_dir)


def with_text(config: RunConfig, text: Path) -> RunConfig:
    return replace(config, dataset=replace(config.dataset, path=str(text)))


def write_files(folder: Path, num_files: int, words_per_file: int) -> None:
    """Write documents into files, unless they exist."""
    if folder.exists():
        return
    partial = folder.with_name(f".{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for number in range(num_files):
        draw = random.Random(number)
        with (partial / f"{number:05}.jsonl").open("w", encoding="utf-8") as file:
            for length in lengths(draw, words_per_file, PACKED_LENGTH):
                text = " ".join(word(draw.randrange(30_000)) for _ in range(length))
                file.write(json.dumps({"text": text}) + "\n")
    partial.rename(folder)


def write_parts(config: RunConfig, folder: Path, num_parts: int) -> None:
    """Write parts as `data prepare --part` does, in one process: the text is listed once, not once a part."""
    request = open_request(config, size_and_ends, is_parted=True)
    assert request.tokenizer is not None
    request.tokenizer.tokenizer.model_max_length = segment_length(config)
    encoder, content = request.examples.encoder(request.tokenizer), request.content()
    blocks = [
        BlockRows(index, block.key, block.source.open(), block.key)
        for index, block in enumerate(blocks_of(request.corpus.train))
    ]
    for number in range(1, num_parts + 1):
        part = PartNumber(number, num_parts)
        rows = request.corpus.train.rows
        writer = PartWriter(folder, part, content, request.tokenizer, encoder, rows)
        writer.write({"train": PartSplit(len(blocks), blocks[number - 1 :: num_parts])})


MEASURED = """
import json, os, resource, subprocess, sys, time
started_s = time.perf_counter()
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds = {"seconds": time.perf_counter() - started_s, "cpu_s": used.ru_utime + used.ru_stime}
print(json.dumps({"code": code} | seconds | {"peak_mib": used.ru_maxrss / 1024}))
"""
"""A small process between: a child begins with the peak memory of the process that starts it."""


def child(module: str, work: Path, content: dict[str, Any], *arguments: str) -> dict[str, Any]:
    """Run a program of the store; return its wall time and peak memory. Raises RuntimeError if it fails."""
    file = work / "content.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    command = [sys.executable, "-m", f"neobert.data.store.{module}", str(file), *arguments]
    done = subprocess.run([sys.executable, "-c", MEASURED, *command], stdout=subprocess.PIPE, check=True)
    measured = json.loads(done.stdout)
    if code := measured.pop("code"):
        raise RuntimeError(f"{command} ended with {code}")
    return {name: round(value, 2) for name, value in measured.items()}


if __name__ == "__main__":
    main()
