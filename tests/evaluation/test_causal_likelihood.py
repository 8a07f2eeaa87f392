"""Log-likelihoods of a causal model against transformers, one text at a time."""

import json
import math
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from neobert.evaluation.likelihood.blimp import evaluate_blimp
from neobert.evaluation.likelihood.job import Settings
from neobert.evaluation.likelihood.load import load_scorer
from neobert.evaluation.likelihood.next_tokens import NextTokenScorer
from neobert.evaluation.likelihood.pseudo_perplexity import evaluate_texts
from tests.framed_tokenizers import END, tokenizer_of

WORDS = [f"word{number}" for number in range(40)]
MOST = 8
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join), min_size=1, max_size=5)


@pytest.fixture(scope="module", params=["BERT", "nothing"])
def folder(request, tmp_path_factory) -> Path:
    """A Llama with 64 positions, whose tokenizer frames texts at both sides or not at all."""
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer_of(request.param, WORDS, eos_token=END).save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    settings = LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=64, **sizes)
    model = LlamaForCausalLM(settings)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0)
    model.save_pretrained(folder)
    return folder


@cache  # a property has fifty examples
def loaded(folder: Path) -> tuple[Any, PreTrainedTokenizerFast]:
    model = AutoModelForCausalLM.from_pretrained(folder).eval().double()
    return model, PreTrainedTokenizerFast.from_pretrained(folder)


@cache
def loaded_scorer(folder: Path) -> NextTokenScorer:
    return load_scorer(folder, max_length=MOST)


def by_transformers(folder: Path, texts: list[str]) -> np.ndarray:
    """The definition: each token from at least half a window before it, in fp64.

    Contexts of one length are rows of one batch; none is padded.
    """
    model, tokenizer = loaded(folder)
    framed = tokenizer("").input_ids
    start = framed[:1] or [tokenizer.eos_token_id]
    contexts: dict[int, list[tuple[int, int, list[int]]]] = defaultdict(list)
    for number, text in enumerate(texts):
        ids = start + tokenizer(text, add_special_tokens=False).input_ids
        for place in range(1, len(ids)):
            step = max(0, -(-(place + 1 - MOST) // (MOST // 2)))
            stop = min(len(ids), MOST + step * (MOST // 2))
            context = ids[max(0, stop - MOST) : place]
            contexts[len(context)].append((number, ids[place], context))
    found = np.zeros((len(texts), 2))
    for rows in contexts.values():
        with torch.no_grad():
            logits = model(torch.tensor([context for *_, context in rows])).logits[:, -1]
        for (number, token, _), scores in zip(rows, logits.log_softmax(-1), strict=True):
            found[number] += [float(scores[token]), 1]
    return found


@given(texts=TEXTS, tokens_per_run=st.integers(1, 60))
def test_windows_in_packed_runs_equal_one_token_at_a_time(folder, texts, tokens_per_run):
    scorer = loaded_scorer(folder)
    scorer.tokens_per_run = tokens_per_run
    np.testing.assert_allclose(scorer.score(texts), by_transformers(folder, texts), rtol=1e-5, atol=1e-6)


def test_perplexity_of_tokens_and_of_bytes(folder, tmp_path):
    texts = [" ".join(WORDS[:20]), "", WORDS[3]]
    (tmp_path / "t.txt").write_text("\n".join(texts) + "\n")
    settings = Settings(folder=str(folder), output=tmp_path / "scores.npy", max_length=MOST)
    report = evaluate_texts(tmp_path / "t.txt", None, "train", settings)
    wanted = by_transformers(folder, texts)
    loss, num_bytes = -wanted[:, 0].sum(), sum(map(len, texts))
    assert report["kind"] == "neobert-perplexity"
    assert report["perplexity"] == pytest.approx(math.exp(loss / wanted[:, 1].sum()), rel=1e-5)
    assert report["byte_perplexity"] == pytest.approx(math.exp(loss / num_bytes), rel=1e-5)
    assert report["bits_per_byte"] == pytest.approx(loss / num_bytes / math.log(2), rel=1e-5)
    assert (report["tokens"], report["truncated"]) == (int(wanted[:, 1].sum()), 0)
    assert [figure["metric"] for figure in report["summary"]["figures"]][:2] == [
        "perplexity of tokens",
        "perplexity of bytes",
    ]


def test_a_pair_is_right_if_the_sum_is_larger_and_a_tie_is_wrong(folder, tmp_path):
    sentences = [(" ".join(WORDS[n : n + 4]), " ".join(WORDS[n + 1 : n + 5])) for n in range(6)]
    sentences.append((WORDS[0], WORDS[0]))
    rows = [{"sentence_good": good, "sentence_bad": bad, "UID": "p"} for good, bad in sentences]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = Settings(folder=str(folder), output=tmp_path / "scores.npy", max_length=MOST)
    report = evaluate_blimp(tmp_path / "b.jsonl", settings, None)
    scores = by_transformers(folder, [each for pair in sentences for each in pair])[:, 0]
    is_right = scores[0::2] > scores[1::2]
    is_right[-1] = False
    assert (report["accuracy"], report["ties"]) == (pytest.approx(is_right.mean()), 1)
