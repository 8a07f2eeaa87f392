"""Contrastive training: this trainer against sentence-transformers' trainer, on one device, in turns.

    python benchmarks/contrastive_speed.py DATA TOKENIZER WORK [--shapes 12x512 bert-base] [--output DIR]

Random weights of a NeoBERT of 12 x 512 and of BERT-base, both with heads of 64 and without dropout, are
trained on the pairs of SNLI and the duplicates of Quora, in the folder `contrastive` of DATA, with in-batch
negatives, as `init --from` writes the run, and compiled. The peer (`peers/sentence_arm.py`) has the same
pairs, with as many to a step, in its forms: padded, by default and sorted by length; unpadded; and compiled.
Turns, profiles and ratios are as in `against_trainer.py`; a sample is a pair: the tokens of the texts by
the mean of a pair. A shape takes about 130 s on an H100, half of it to start and to compile.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from against_trainer import COMPILED, OURS, compare_arms, format_table, resolved_config_path
from measurement import write_measurement
from peers.turn_taking import ArmProcess
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from neobert.config import to_dict
from neobert.data.store.prepare import prepare
from neobert.export.folder import read_tokenizer_files, write_hf_folder
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from profiles.registry import resolve_run

PEERS = (
    "default",
    "sorted",
    "sorted, compiled",
    "unpadded",
    "unpadded, compiled",
    "unpadded, flash_attention_4, compiled",
)
"""Forms of `peers/sentence_arm.py`."""
SIZES = {
    "12x512": {
        "hidden_size": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
    },
    "bert-base": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
}
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 96}
LENGTH = 128
GOALS = {"padded": 2.0, "unpadded": 1.3}
PATIENCE_S = 100.0
"""Time limit of a peer's turn: its loading processes may hang, and the others would wait."""


def write_pairs(folder: Path, file: Path) -> None:
    """Write training pairs as JSON lines, one text with its positive per line."""
    with gzip.open(folder / "snli" / "triplets.jsonl.gz", "rt", encoding="utf-8") as lines:
        pairs = [(row["anchor"], row["positive"]) for row in map(json.loads, lines)]
    for split in ("dev", "test"):
        with gzip.open(folder / "quora" / f"{split}.txt.gz", "rt", encoding="utf-8") as lines:
            rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
            pairs += [(first, second) for first, second, label in rows if label == "1"]
    text = (json.dumps({"query": query, "positive": positive}) + "\n" for query, positive in pairs)
    file.write_text("".join(text), encoding="utf-8")


def write_model(folder: Path, shape: str, tokenizer: PreTrainedTokenizerFast, *, is_tiny: bool) -> None:
    """Write a model folder with random weights: transformers' BERT or a NeoBERT."""
    torch.manual_seed(0)
    sizes, vocabulary = TINY if is_tiny else SIZES[shape], len(tokenizer)
    tokenizer.model_max_length = LENGTH
    tokenizer.save_pretrained(folder)
    if shape == "bert-base":
        config = BertConfig(
            **sizes, vocab_size=vocabulary, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        BertForMaskedLM(config).save_pretrained(folder)
        return
    rounded = -(-vocabulary // 128) * 128
    own = NeoBERTConfig(**sizes, vocab_size=rounded, max_position_embeddings=LENGTH, pooling="avg")
    write_hf_folder(NeoBERTLMHead(own), read_tokenizer_files(folder), folder)


def write_runs(work: Path, pairs: Path, num_pairs: int, *, is_tiny: bool) -> float:
    """Write our arms' configs; return the mean number of tokens per pair."""
    run_file = work / "run.yaml"
    run_file.unlink(missing_ok=True)
    given = ["--from", work / "model", "--task", "contrastive", "--text", pairs]
    words = [*map(str, given), "--device", "cpu" if is_tiny else "gpu", str(run_file)]
    subprocess.run([sys.executable, "-m", "launcher", "init", *words], check=True, stdout=subprocess.DEVNULL)
    always = [
        f"dataset.cache_dir={work / 'cache'}",
        f"dataset.max_seq_length={LENGTH}",
        "dataset.validation_split=null",
        "trainer.metric_for_best_model=null",
        "trainer.gradient_accumulation_steps=1",
        "datacollator.pack_sequences=true",
    ]
    mean = prepare(resolve_run(None, [run_file], always).config).train.statistics.mean
    rows = max(1, round(num_pairs * mean / LENGTH))
    always.append(f"trainer.per_device_train_batch_size={rows}")
    for name, keys in OURS.items():
        config = resolve_run(None, [run_file], [*always, *keys]).config
        resolved_config_path(work, name).write_text(json.dumps(to_dict(config)), encoding="utf-8")
    return float(mean)


def add_sample_rates(figures: dict[str, Any], mean: float) -> dict[str, Any]:
    """Add samples per second, and the ratios to the padded and unpadded peers, to the figures.

    A compiled arm of ours is compared with the fastest peer of each kind, if a compiled one of that kind ran.
    """
    rates = figures["tokens_per_second"]
    samples = {name: round(rate / mean, 1) for name, rate in rates.items()}
    against: dict[str, dict[str, float]] = {}
    for name in (name for name in OURS if name in rates):
        is_compiled, against[name] = name.endswith(COMPILED), {}
        for kind, forms in {"padded": PEERS[:3], "unpadded": PEERS[3:]}.items():
            ran = [form for form in forms if form in rates and (is_compiled or not form.endswith(COMPILED))]
            if any(form.endswith(COMPILED) is is_compiled for form in ran):
                against[name][kind] = round(rates[name] / max(rates[form] for form in ran), 3)
    return {**figures, "samples_per_second": samples, "tokens_per_pair": mean, "against": against}


def run_shape(chosen: argparse.Namespace, shape: str) -> Iterator[dict[str, Any]]:
    """Yield the figures of one model shape after every round."""
    work = chosen.work / shape
    work.mkdir(parents=True, exist_ok=True)
    roles = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(chosen.tokenizer / "tokenizer.json"), **roles)
    pairs = chosen.work / "pairs.jsonl"
    write_model(work / "model", shape, tokenizer, is_tiny=chosen.tiny)
    mean = write_runs(work, pairs, chosen.pairs, is_tiny=chosen.tiny)

    def start(folder: Path, name: str, log: Any) -> ArmProcess:
        resolved = str(resolved_config_path(folder, name if name in OURS else "ours"))
        if name in OURS:
            return ArmProcess("own_arm", [resolved], log)
        return ArmProcess("sentence_arm", [resolved, str(pairs), name], log, PATIENCE_S)

    for found in compare_arms(start, work, chosen.arms, chosen.rounds, chosen.round_seconds):
        yield add_sample_rates(found, mean) | {"run_file": (work / "run.yaml").read_text()}
    print(f"{shape}, {mean:.1f} tokens per pair\n{format_table(found)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("tokenizer", type=Path, help="tokenizer folder with BERT's special tokens")
    parser.add_argument("work", type=Path)
    parser.add_argument("--shapes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--arms", nargs="+", choices=[*OURS, *PEERS], default=[*OURS, *PEERS[:-1]])
    parser.add_argument("--pairs", type=int, default=512, help="pairs in a step")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--round-seconds", type=float, default=3.0, help="seconds of each arm per round")
    parser.add_argument("--tiny", action="store_true", help="a dry run on a CPU")
    parser.add_argument("--output", type=Path, help="folder for the JSON file")
    chosen = parser.parse_args()
    chosen.work = chosen.work.resolve()
    chosen.work.mkdir(parents=True, exist_ok=True)
    write_pairs(chosen.data / "contrastive", chosen.work / "pairs.jsonl")
    shapes: dict[str, Any] = {}
    for shape in chosen.shapes:
        for number, found in enumerate(run_shape(chosen, shape), 1):
            shapes[shape] = found
            if chosen.output:
                is_last = (shape, number) == (chosen.shapes[-1], chosen.rounds)
                write_figure(chosen.output, shapes, chosen.pairs, is_complete=is_last)
        print(shape, "samples/s", found["samples_per_second"], "ours against", found["against"], flush=True)


def write_figure(folder: Path, shapes: dict[str, Any], pairs: int, *, is_complete: bool) -> None:
    ratios = [each["against"].get("ours, compiled", {}).get("unpadded") for each in shapes.values()]
    least = None if None in ratios else min(ratios)
    unit = "times the samples/s of sentence-transformers' unpadded form, compiled; the smaller of the shapes"
    detail = {"goals": GOALS, "pairs": pairs, "shapes": shapes}
    path = folder / "contrastive-speed.json"
    write_measurement(path, least, unit, GOALS["unpadded"], detail, is_complete=is_complete)


if __name__ == "__main__":
    main()
