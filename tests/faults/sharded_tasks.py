"""Train every family and task sharded over two ranks, and continue on one.

python -m tests.faults.sharded_tasks [FAMILY/TASK ...]

Without names, each pair that a family supports is trained, and each architecture on text. Prints a JSON
object: for each pair the exit codes, and the largest relative difference of losses, gradient norms and
evaluations from those of one rank. Exits 1 where a pair fails.
"""

import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neobert.config import from_dict
from neobert.families.table import unsupported_keys
from tests.families.layouts import DECODERS, PACKED, SMALL
from tests.families.rows import LABELS, OF_SEVERAL_TEXTS, WORDS, write_rows
from tests.faults import nursery
from tests.nsa.sizes import MODEL as NSA
from tests.tasks.sft_templates import PLAIN, bytes_tokenizer
from tests.training.conftest import TINY, exact_lines, write_run

ONE, SHARDED = (1, "replicated"), (2, "fsdp2")
HALF, END = 2, 4
CLOSE = 1e-4
CORRELATION = "eval/pearson"
TASKS: dict[str, dict[str, Any]] = {
    "text": {"task": "pretrain"},
    **LABELS,
    **OF_SEVERAL_TEXTS,
    "queries": {"task": "contrastive"},
    "next": {"task": "causal"},
    "talks": {"task": "sft"},
}
"""Keys of each task by the name of its rows."""
WITHOUT_DROPOUT = ("classification", "token_classification", "multiple_choice")
WITH_ALL_TASKS = ("neobert", "bert", "llama", "nsa")
OF_NEOBERT = TINY["model"] | {"num_hidden_layers": 2}


def main(requested: list[str]) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder)
        write_queries_and_talks(folder)
        TINY["model"] = {}  # its sizes are those of one family
        pairs = [each.split("/") for each in requested] or pairs_of(folder)
        found = {f"{model}/{rows}": train(folder, model, rows) for model, rows in pairs}
    print(json.dumps(found))
    return int(any(any(codes) or difference > CLOSE for codes, difference in found.values()))


def write_queries_and_talks(folder: Path) -> None:
    """Write the rows that `write_rows` does not, and a tokenizer with a chat template."""
    queries = [{"query": f"{word} ba", "positive": f"ba {word}", "negative": "ba be"} for word in WORDS]
    talks = [
        {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word * 3}]}
        for word in WORDS
    ]
    for name, rows in (("queries", queries), ("talks", talks)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    shutil.copy(folder / "text.jsonl", folder / "next.jsonl")
    tokenizer = bytes_tokenizer()
    tokenizer.chat_template = PLAIN
    tokenizer.save_pretrained(folder / "tokenizer of talks")


def pairs_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Return the models and rows that fit: their family yields no key that it does not support."""
    for model in ("neobert", "nsa", *SMALL, *DECODERS):
        is_causal = model in ("nsa", *DECODERS)
        for rows in TASKS:
            config = from_dict(sections(folder, model, rows, ONE))
            is_chosen = model in WITH_ALL_TASKS or rows in ("text", "next")
            is_fitting = is_causal == (rows in ("next", "talks"))
            if is_chosen and is_fitting and not any(unsupported_keys(config)):
                yield model, rows


def model_section(folder: Path, model: str) -> dict[str, Any]:
    if model in ("neobert", "nsa"):
        return OF_NEOBERT if model == "neobert" else NSA
    file = folder / model / "config.json"
    file.parent.mkdir(exist_ok=True)
    values = {"model_type": model, "max_position_embeddings": 34, **(SMALL | DECODERS)[model]}
    values["embd_pdrop"] = 0.0  # of a GPT-2, whose embeddings model.dropout is not for
    file.write_text(json.dumps(values), encoding="utf-8")
    section = {"type": "hf", "config": str(file)}
    without = {key: 0.0 for key in ("dropout", "attention_dropout") if takes(section, key)}
    return section | without


def takes(section: dict[str, Any], key: str) -> bool:
    """Return whether an architecture has this key of the section `model`."""
    config = from_dict({"model": section | {key: 0.0}})
    return f"model.{key}" not in (each.key for each in unsupported_keys(config))


def sections(folder: Path, model: str, rows: str, way: tuple[int, str], steps: int = END) -> dict[str, Any]:
    """Return the keys of a run whose steps have the same samples on one rank and on two, without dropout."""
    ranks, mode = way
    keys = dict(TASKS[rows])
    if keys["task"] in WITHOUT_DROPOUT:
        keys[keys["task"]] = keys.get(keys["task"], {}) | {"dropout": 0.0}
    tokenizer = "tokenizer of talks" if rows == "talks" or model == "qwen2" else "tokenizer"
    is_split = rows in ("text", "next", "answers")
    every = {"max_steps": steps, "save_steps": HALF, "eval_steps": HALF, "logging_steps": 1}
    return keys | {
        "model": model_section(folder, model),
        "tokenizer": {"path": str(folder / tokenizer), "vocab_size": None},
        "dataset": {"eval_samples": 8, "long_documents": "split" if is_split else "truncate"},
        "datacollator": {"pack_sequences": model in (*PACKED, *DECODERS, "neobert", "nsa")},
        "trainer": {**every, "gradient_accumulation_steps": 2 // ranks, "torch_compile": False},
        "scheduler": {"total_steps": END},
        "distributed": {"nproc_per_node": ranks, "mode": mode, "reshard_after_forward": ranks > 1},
    }


def train(folder: Path, model: str, rows: str) -> tuple[list[int], float]:
    """Train on one rank, and sharded and then on one; return the exit codes and the largest difference."""
    corpus = {"path": str(folder / f"{rows}.jsonl"), "cache_dir": str(folder / "cache")}
    codes, runs = [], [folder / f"{model} {rows} {name}" for name in ("alone", "sharded")]
    for run_dir, way, steps in ((runs[0], ONE, END), (runs[1], SHARDED, HALF), (runs[1], ONE, END)):
        write_run(run_dir, corpus, sections(folder, model, rows, way, steps))
        codes += nursery.run_ranks(run_dir, way[0])
        if any(codes):
            print(model, rows, way, (run_dir / "log_0").read_text()[-3000:], file=sys.stderr)
            return codes, math.inf
    alone, shared = map(exact_lines, runs)
    return codes, max(difference(*lines) for lines in zip(alone, shared, strict=True))


def difference(left: dict[str, float], right: dict[str, float]) -> float:
    """Return the largest relative difference between two lines of metrics; infinity for other keys.

    The difference of a correlation is that of its values: one near zero has errors far above its size.
    """
    if left.keys() != right.keys():
        return math.inf
    scales = {name: 1.0 if name == CORRELATION else max(abs(value), 1e-6) for name, value in left.items()}
    return max(abs(right[name] - value) / scales[name] for name, value in left.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
