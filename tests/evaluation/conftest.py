"""A tiny encoder and small copies of labelled data."""

import json
import random
from pathlib import Path

import pytest

from tests.encoding.conftest import _one_thread_one_seed, model_folder, tokenizer_dir

__all__ = ["_one_thread_one_seed", "model_folder", "tokenizer_dir"]

GOOD, BAD = ("a", "b"), ("x", "y")


def labelled(count: int, seed: int) -> list[tuple[str, bool]]:
    """Texts whose label is a word of theirs; no text of one seed is a text of another."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        is_good = draw.random() < 0.5
        words = [draw.choice(("the", "model", "reads", "text")) for _ in range(draw.randint(1, 6))]
        words.append(draw.choice(GOOD if is_good else BAD))
        rows.append((" ".join([*words, *f"{seed}{number}"]), is_good))
    return rows


@pytest.fixture
def glue_data(tmp_path: Path) -> Path:
    """CoLA without a header and with a lone quote, RTE with a byte order mark, MNLI as a sample in JSON."""
    root = tmp_path / "glue"
    for split, count, seed in (("train", 48, 1), ("dev", 16, 2)):
        rows = labelled(count, seed)
        cola = "".join(f'gj04\t{int(good)}\t\t"{text}\n' for text, good in rows)
        names = {True: "entailment", False: "not_entailment"}
        rte = "".join(f"{n}\t{text}\ta b\t{names[good]}\n" for n, (text, good) in enumerate(rows))
        mnli = {
            str(n): {"text_a": text, "text_b": "a b", "label": "entailment" if good else "contradiction"}
            for n, (text, good) in enumerate(rows)
        }
        for name in ("CoLA", "RTE", "MNLI_sample"):
            (root / name).mkdir(parents=True, exist_ok=True)
        (root / "CoLA" / f"{split}.tsv").write_text(cola, encoding="utf-8")
        header = "\ufeffindex\tsentence1\tsentence2\tlabel\n"
        (root / "RTE" / f"{split}.tsv").write_text(header + rte, encoding="utf-8")
        file = {"train": "train.json", "dev": "heldout_from_train.json"}[split]
        (root / "MNLI_sample" / file).write_text(json.dumps(mnli), encoding="utf-8")
    return root
