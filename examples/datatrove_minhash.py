"""Remove near-copies from a text with datatrove's minhash, and prepare the rest for a run.

Each of the four stages is repeated alone after a kill: finished tasks are in WORK/logs. Then
`neobert-launch data join OUTPUT`, and the run file has `dataset.path: OUTPUT`.

    pip install -c constraints.txt -e '.[datatrove]'
    python examples/datatrove_minhash.py run.yaml TEXT WORK OUTPUT --tasks 64 --workers 8
    python examples/datatrove_minhash.py run.yaml TEXT WORK OUTPUT --tasks 64 --slurm PARTITION
"""

from __future__ import annotations

import argparse
from typing import Any

from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.utils.hashing import HashConfig
from datatrove.utils.word_tokenizers import WordTokenizer

import neobert_launch as nl
from neobert.data.datatrove_step import TokenStoreWriter

CONFIG = MinhashConfig(hash_config=HashConfig(hash_fc="sha1"))
"""Copies of a similarity of 0.8 are found with a probability of 0.92, of 0.9 with 0.9997."""


class Words(WordTokenizer):
    """Words between white space. The languages that datatrove knows by name need spaCy or another package."""

    def word_tokenize(self, text: str) -> list[str]:
        """Return the words; punctuation is removed before."""
        return text.split()

    def sent_tokenize(self, text: str) -> list[str]:
        """Return the text as one sentence, which minhash does not ask for."""
        return [text]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Return the bounds of that sentence."""
        return [(0, len(text))]


def stages(options: argparse.Namespace) -> list[tuple[str, list[Any], int]]:
    """Return (name, steps, number of tasks) of each stage."""
    config, work = nl.load_run(options.run_file).config, options.work
    signatures, buckets, removed = f"{work}/signatures", f"{work}/buckets", f"{work}/removed"
    # The last stage finds the documents of the first by their number: both read the text in the same tasks.
    text = JsonlReader(options.text)
    write = TokenStoreWriter(config, options.output)
    return [
        ("signatures", [text, MinhashDedupSignature(signatures, CONFIG, language=Words())], options.tasks),
        ("buckets", [MinhashDedupBuckets(signatures, buckets, config=CONFIG)], CONFIG.num_buckets),
        ("clusters", [MinhashDedupCluster(buckets, removed, config=CONFIG)], 1),
        ("tokens", [text, MinhashDedupFilter(removed), write], options.tasks),
    ]


def main() -> None:
    """Run the stages, each after the one before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in ("run_file", "text", "work", "output"):
        parser.add_argument(name)
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="tasks at a time on this machine")
    parser.add_argument("--slurm", metavar="PARTITION", help="run each stage as a job array")
    options = parser.parse_args()
    executor: Any = None
    for name, steps, tasks in stages(options):
        settings = {"tasks": tasks, "logging_dir": f"{options.work}/logs/{name}"}
        if options.slurm:
            settings |= {"partition": options.slurm, "time": "24:00:00", "job_name": name}
            executor = SlurmPipelineExecutor(steps, depends=executor, **settings)
        else:
            LocalPipelineExecutor(steps, workers=options.workers, **settings).run()
    if options.slurm:
        executor.run()  # submits the stages that it depends on as well


if __name__ == "__main__":
    main()
