"""Passkey test of a language model: accuracy of predicted key words by length and depth."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from neobert.encoding.encoder import TOKENS_PER_RUN
from neobert.encoding.model import InferenceModel, load_model
from neobert.encoding.packed_rows import group_into_rows, pack
from neobert.encoding.placement import resolve_placement
from neobert.encoding.tokens import TextTokenizer
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.evaluation.passkey.documents import DEPTHS, KEY_WORDS, Document, Documents
from neobert.progress import Progress
from neobert.runfiles.checkpoint.model_files import weights_digest
from neobert.runfiles.evaluation_report import SUMMARY, WEIGHTS, ReportFigure, summary_json
from neobert.runfiles.model_folder import model_folder

KIND, SCHEMA_VERSION = "neobert-passkey", 1
OPTION = "--lengths"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Model, documents and compute type.

    Attributes:
        lengths: tokens per document.
        trials: documents per length and depth.
    """

    folder: str
    lengths: tuple[int, ...]
    trials: int = 20
    seed: int = 0
    dtype: str | None = None
    device: str | None = None


def evaluate_passkey(settings: Settings) -> dict[str, Any]:
    """Predict the key words of all documents; return the accuracies as JSON values.

    Raises `ProjectError` for an unusable model, or if a length has no room for the question.
    """
    folder = model_folder(Path(settings.folder))
    model = load_model(folder, *resolve_placement(settings.device, settings.dtype), needs_decoder=True)
    model.extend_to(max(settings.lengths))
    role = "eos_token" if model.is_causal else "mask_token"
    tokenizer = TextTokenizer.load(folder, max(settings.lengths), model.num_rows, (role,))
    documents = Documents(tokenizer.bundle, is_causal=model.is_causal)
    if min(settings.lengths) < documents.min_length:
        message = (
            f"{min(settings.lengths)} tokens are too few for a document (at least {documents.min_length})"
        )
        raise ProjectError(
            "usage", message, f"set {OPTION} to {documents.min_length} tokens or more", OPTION, EXIT_USAGE
        )
    started_s = time.perf_counter()
    places = [(length, depth) for length in sorted(settings.lengths, reverse=True) for depth in DEPTHS]
    progress = Progress("testing", "documents", len(places) * settings.trials)
    found = {}
    for length, depth in places:
        numbers = range(settings.trials)
        tested = [documents.document(settings.seed, length, depth, number) for number in numbers]
        found[length, depth] = _accuracy(model, tokenizer, tested)
        progress.advance(len(tested))
    by_length = {
        str(length): fmean(found[length, depth] for depth in DEPTHS) for length in sorted(settings.lengths)
    }
    chance = 1 / len(documents.words)
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "model": str(folder),
        WEIGHTS: weights_digest(folder),
        SUMMARY: _report_summary(by_length, settings.trials, chance),
        "settings": asdict(settings),
        "key_words": KEY_WORDS,
        "chance": chance,
        "accuracy": by_length,
        "by_depth": {
            str(length): {str(depth): found[length, depth] for depth in DEPTHS}
            for length in sorted(settings.lengths)
        },
        "kernels": model.kernels,
        "seconds": round(time.perf_counter() - started_s, 3),
    }


def _accuracy(model: InferenceModel, tokenizer: TextTokenizer, documents: Sequence[Document]) -> float:
    """Return the share of key words that are the most likely token of the whole vocabulary."""
    right = 0
    sizes = [len(each.tokens) for each in documents]
    for chosen in group_into_rows(sizes, TOKENS_PER_RUN[model.device.type]):
        some = [documents[index] for index in chosen]
        keys = np.concatenate([each.key for each in some])
        right += int((_predict_keys(model, tokenizer, some) == keys).sum())
    return right / (len(documents) * KEY_WORDS)


@torch.no_grad()
def _predict_keys(
    model: InferenceModel, tokenizer: TextTokenizer, documents: Sequence[Document]
) -> NDArray[np.int64]:
    """Return the most likely token for each key word of packed documents."""
    sequences = [each.tokens for each in documents]
    packed = pack(sequences, tokenizer.bundle.filler_id, model.length_multiple).to(model.device)
    starts = np.cumsum([0, *map(len, sequences)])
    rows = np.concatenate([start + each.queried for start, each in zip(starts, documents, strict=False)])
    hidden = model.hidden_states(packed)[torch.from_numpy(rows).to(model.device)]
    predicted: NDArray[np.int64] = model.logits(hidden).argmax(-1).cpu().numpy()
    return predicted


def _report_summary(by_length: Mapping[str, float], trials: int, chance: float) -> dict[str, Any]:
    figures = [
        ReportFigure(name=f"{int(length):,} tokens", metric="accuracy", value=value)
        for length, value in by_length.items()
    ]
    depths = ", ".join(f"{depth:g}" for depth in DEPTHS)
    notes = [
        f"{KEY_WORDS} key words, {trials} documents at each depth ({depths}); chance among the words that "
        f"keys are drawn from is {chance:.2%}"
    ]
    return summary_json("Passkey", figures, notes)
