"""Unpadded path of sentence-transformers on a GPU: `unpadded_export.py --output unpadded-export.json`.

Exports a random model of 768 channels in heads of 64, loads the folder with each FlashAttention of
transformers that is installed, and compares embeddings of unpadded and padded batches in bf16.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measurement import write_measurement
from sentence_transformers import SentenceTransformer

from neobert.config.schema import TokenizerConfig
from neobert.data.tokenize.trained import train_tokenizer
from neobert.export import write_hf_folder
from neobert.export.folder import read_tokenizer_files
from neobert.export.run import export
from neobert.model import NeoBERTConfig, NeoBERTLMHead

IMPLEMENTATIONS = ("flash_attention_4", "flash_attention_3", "flash_attention_2")
LIMIT = 1.5
"""Of a difference from fp32, over that of padded rows in bf16: the largest of all texts."""


def main() -> int:
    """Write the state of every implementation; fails unless one is unpadded and close."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("unpadded-export.json"))
    arguments = parser.parse_args()
    texts = make_texts(512)
    with TemporaryDirectory() as folder:
        exported = export_random(Path(folder), texts)
        wanted = encode(exported, texts, "sdpa", torch.float32, unpadded=False)["embeddings"]
        padded = compare(exported, texts, "sdpa", wanted, unpadded=False)
        arms = {name: compare(exported, texts, name, wanted) for name in IMPLEMENTATIONS}
    works = [
        name
        for name, arm in arms.items()
        if arm.get("can_flatten_inputs") and arm["difference"] <= LIMIT * padded["difference"]
    ]
    detail = {"padded": padded, "arms": arms}
    write_measurement(arguments.output, len(works), "implementations that run unpadded", 1, detail)
    print(detail)
    return int(not works)


def make_texts(count: int) -> list[str]:
    """Draw texts of 3 to 300 words."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(3000)]
    return [" ".join(draw.choices(words, k=draw.randint(3, 300))) for _ in range(count)]


def export_random(folder: Path, texts: list[str]) -> Path:
    """Export a random model with a tokenizer trained on the texts."""
    tokenizer = train_tokenizer(texts, TokenizerConfig(vocab_size=4096))
    tokenizer.save_pretrained(folder / "tokenizer")
    config = NeoBERTConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=6,
        max_position_embeddings=1024,
        pooling="avg",
        init="scaled",
    )
    torch.manual_seed(0)
    files = read_tokenizer_files(folder / "tokenizer")
    write_hf_folder(NeoBERTLMHead(config).eval(), files, folder / "checkpoint")
    export([folder / "checkpoint"], ["sentence-transformers"], folder / "out", None)
    return folder / "out" / "sentence-transformers"


def encode(
    folder: Path, texts: list[str], implementation: str, dtype: torch.dtype, *, unpadded: bool
) -> dict[str, Any]:
    """Embed the texts on the GPU; return whether the unpadded path was used."""
    options = {"attn_implementation": implementation, "dtype": dtype}
    model = SentenceTransformer(str(folder), device="cuda", trust_remote_code=True, model_kwargs=options)
    can_flatten = bool(model[0].can_flatten_inputs)
    if not unpadded:
        model[0].unpad_inputs = False
    embeddings = model.encode(texts, batch_size=64, convert_to_tensor=True).float()
    return {"embeddings": embeddings, "can_flatten_inputs": can_flatten}


def compare(
    folder: Path, texts: list[str], name: str, wanted: torch.Tensor, *, unpadded: bool = True
) -> dict[str, Any]:
    """Compare a path in bf16 with padded rows in fp32; say why an implementation does not run.

    `difference` is the largest norm of a difference over all texts, relative to the norm of the embedding.
    """
    try:
        found = encode(folder, texts, name, torch.bfloat16, unpadded=unpadded)
    except (ImportError, ValueError, RuntimeError) as error:
        return {"not_run": str(error).splitlines()[0][:300]}
    gap = (found["embeddings"] - wanted).norm(dim=1) / wanted.norm(dim=1)
    return {
        "can_flatten_inputs": found["can_flatten_inputs"],
        "difference": float(gap.max()),
        "median_difference": float(gap.median()),
    }


if __name__ == "__main__":
    raise SystemExit(main())
