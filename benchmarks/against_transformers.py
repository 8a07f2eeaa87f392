"""Useful tokens per second of this trainer against `transformers.Trainer` on padded rows.

    python benchmarks/against_transformers.py [--pairs 3] [--steps 60] [--json FILE]

Same model, same text, same machine: each pair runs both sides in child processes, one after the other, on the
same prepared documents. The peer is `transformers.Trainer` with documents of similar length in each batch
(`train_sampling_strategy="group_by_length"`), rows padded to the longest of the batch by
`DataCollatorForLanguageModeling`, logits over all positions. Its batch has as many useful tokens on average
as our microbatch, so that both take optimizer steps of the same size. One of its steps is profiled: dense
attention ends the program. A useful token is one of a document, not padding. The figure is the median of the
pairs' ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measurement import write_measurement

from neobert.runfiles.run_dir import METRICS
from neobert.training.telemetry.jsonl_writer import read_rows

if TYPE_CHECKING:
    from neobert.config import RunConfig
    from neobert.data.store.token_store import TokenStore

WARM_UP = 10
"""Steps of the peer before its clock starts; 50 steps are one of the groups that it sorts by length."""
OVERRIDES = (
    "trainer.eval_steps=0",
    "trainer.save_steps=0",
    "trainer.logging_steps=5",
    "scheduler.warmup_steps=5",
    "trainer.overwrite_output_dir=true",
)


def main() -> None:
    """Run the pairs and print the ratio of the medians and of each pair."""
    arguments = parse_arguments()
    if arguments.peer:
        print(json.dumps(run_peer(Path(arguments.peer), arguments.steps)))
        return
    with tempfile.TemporaryDirectory() as folder:
        pairs: list[tuple[float, float]] = []
        for _ in range(arguments.pairs):
            *pair, kernels = run_pair(Path(folder), arguments.steps)
            pairs.append(tuple(pair))
            report(pairs, kernels, arguments)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_pair(folder: Path, steps: int) -> tuple[float, float, dict[str, Any]]:
    """Run this trainer, then the peer on the same configuration; tokens/s of each, the peer's kernels."""
    ours = run_ours(folder / "run", steps)
    resolved = str(folder / "run" / "resolved.json")
    child = [sys.executable, __file__, "--peer", resolved, "--steps", str(steps)]
    peer = json.loads(call(child).splitlines()[-1])
    theirs = peer["tokens_per_second"]
    print(
        f"  tokens/s: this trainer {ours:8,.0f}   transformers.Trainer {theirs:8,.0f}   {ours / theirs:.2f}x"
    )
    return ours, theirs, peer["kernels"]


def call(command: list[str]) -> str:
    """Run a child and return its output; if it fails, print the output and exit."""
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode:
        sys.exit(f"{' '.join(command)} ended with {child.returncode}:\n{child.stdout}{child.stderr}")
    return child.stdout


def run_ours(run_dir: Path, steps: int) -> float:
    """Train through the real command line; the median rate of the logged intervals after the first."""
    overrides = [*OVERRIDES, f"trainer.max_steps={steps}", f"trainer.output_dir={run_dir}"]
    command = [sys.executable, "-m", "launcher", "train", "--profile", "cpu-demo", *overrides]
    call(command)
    rates = [
        row["train/tokens_per_sec"] for row in read_rows(run_dir / METRICS) if "train/tokens_per_sec" in row
    ]
    return statistics.median(rates[1:])


def run_peer(resolved: Path, steps: int) -> dict[str, Any]:
    """Train the same model on the same documents with `transformers.Trainer`; tokens/s after warm-up."""
    from peers.kernels import require_fused_attention, summary
    from peers.profiled import Profiled
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback, TrainingArguments

    from neobert.data.store.prepare import prepare
    from neobert.families.neobert.spec import with_positions
    from neobert.families.table import longest_row
    from neobert.model import NeoBERTLMHead
    from neobert.model.build import build_model_config
    from neobert.train import read_config

    config = read_config(resolved)
    prepared = prepare(config)
    bundle, store = prepared.tokenizer, prepared.train
    section = with_positions(config.model, longest_row(config))
    model = NeoBERTLMHead(build_model_config(section, bundle.vocab_size, bundle.pad_id, "sdpa"))
    collate = DataCollatorForLanguageModeling(
        bundle.tokenizer, mlm_probability=config.datacollator.mlm_probability
    )
    seen = CountingCollator(collate)

    class Clock(TrainerCallback):
        """Starts after the warm-up steps."""

        started = 0.0
        tokens_before = 0

        def on_step_end(self, _args: object, state: object, _control: object, **_: object) -> None:
            if state.global_step == WARM_UP:  # type: ignore[attr-defined]
                Clock.started, Clock.tokens_before = time.perf_counter(), seen.num_tokens

    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=documents_per_step(config, store),
            learning_rate=config.optimizer.lr,
            report_to=[],
            save_strategy="no",
            logging_steps=10**9,
            train_sampling_strategy="group_by_length",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_num_workers=0,
        )
        documents = [{"input_ids": store.tokens[a:b].tolist()} for a, b in pairwise(store.offsets)]
        profiled = Profiled(WARM_UP // 2)
        Trainer(
            model, options, data_collator=seen, train_dataset=documents, callbacks=[Clock(), profiled]
        ).train()
    seconds = time.perf_counter() - Clock.started
    require_fused_attention(profiled.kernels, config.model.num_hidden_layers)
    rate = (seen.num_tokens - Clock.tokens_before) / seconds
    return {"tokens_per_second": rate, "kernels": summary(profiled.kernels)}


def documents_per_step(config: RunConfig, store: TokenStore) -> int:
    """Return how many documents fill one packed microbatch of this trainer."""
    microbatch = config.trainer.per_device_train_batch_size * config.dataset.max_seq_length
    return max(1, round(microbatch / store.statistics.mean))


class CountingCollator:
    """Collator that counts the tokens of documents in another collator's batches."""

    def __init__(self, collate: object) -> None:
        self.collate = collate
        self.num_tokens = 0

    def __call__(self, rows: list[dict[str, list[int]]]) -> object:
        """Collate, and count."""
        self.num_tokens += sum(len(row["input_ids"]) for row in rows)
        return self.collate(rows)  # type: ignore[operator]


def report(pairs: list[tuple[float, float]], kernels: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Print the median ratio, and write it if a file is given."""
    ratios = [ours / theirs for ours, theirs in pairs]
    ratio = statistics.median(ratios)
    print(f"ratio of useful tokens per second (median of {len(pairs)} pairs): {ratio:.2f}")
    if arguments.json:
        detail = {
            "tokens_per_second": pairs,
            "ratios": ratios,
            "steps": arguments.steps,
            "peer_kernels": kernels,
        }
        unit, is_complete = "ratio of useful tokens per second", len(pairs) == arguments.pairs
        write_measurement(arguments.json, ratio, unit, None, detail, is_complete=is_complete)


if __name__ == "__main__":
    main()
