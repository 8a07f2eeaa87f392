"""Pseudo-log-likelihoods against one masked token at a time, BLiMP's rules, and continuation."""

import gzip
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForMaskedLM, AutoTokenizer

from launcher.cli import app
from neobert.encoding import packed_rows
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.evaluation.likelihood import scorer as scoring
from neobert.evaluation.likelihood.blimp import MinimalPair, accuracies, evaluate_blimp
from neobert.evaluation.likelihood.job import Settings
from neobert.evaluation.likelihood.load import load_scorer
from neobert.evaluation.likelihood.pseudo_perplexity import evaluate_texts, pseudo_perplexity
from neobert.evaluation.likelihood.scorer import Scorer
from neobert.export.folder import read_tokenizer_files, write_hf_folder
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.model.modeling_neobert import NeoBERTForSequenceClassification, NeoBERTForTokenClassification
from tests.encoding.conftest import WORDS
from tests.framed_tokenizers import tokenizer_of
from tests.refusals import refusal_of

BLIMP = os.environ.get("NEOBERT_BLIMP")
TEXTS = st.lists(
    st.lists(st.sampled_from([*WORDS, "[MASK]"]), max_size=12).map(" ".join), min_size=1, max_size=6
)


@pytest.fixture
def one_mask_at_a_time() -> Callable[[Path, list[str]], np.ndarray]:
    """The definition: a forward pass per token, no packing, fp64 softmax."""

    @cache  # a property has fifty examples
    def load(folder: Path) -> tuple[Any, Any]:
        model = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="sdpa").eval()
        return model, AutoTokenizer.from_pretrained(folder)

    def score(folder: Path, texts: list[str]) -> np.ndarray:
        model, tokenizer = load(folder)
        special = {
            tokenizer.mask_token_id,
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
            tokenizer.pad_token_id,
        }
        found = np.zeros((len(texts), 2))
        for number, text in enumerate(texts):
            ids = tokenizer(text, truncation=True, max_length=32, return_tensors="pt")["input_ids"]
            for place in range(1, ids.shape[1] - 1):
                if int(ids[0, place]) in special:
                    continue
                masked = ids.clone()
                masked[0, place] = tokenizer.mask_token_id
                with torch.no_grad():
                    logits = model(masked).logits[0, place].double()
                found[number] += [float(logits.log_softmax(-1)[ids[0, place]]), 1]
        return found

    return score


@given(texts=TEXTS, tokens_per_run=st.integers(1, 300))
def test_packed_copies_equal_one_mask_at_a_time(model_folder, one_mask_at_a_time, texts, tokens_per_run):
    found = load_scorer(model_folder, tokens_per_run=tokens_per_run).score(texts)
    wanted = one_mask_at_a_time(model_folder, texts)
    assert np.array_equal(found[:, 1], wanted[:, 1])
    assert np.abs(found[:, 0] - wanted[:, 0]).max() < 1e-4


@pytest.mark.parametrize("fault", ["bounds", "place"])
def test_a_wrong_run_is_caught(model_folder, one_mask_at_a_time, monkeypatch, fault):
    """Negative control: copies that see each other, or the wrong row that is decoded."""
    right = packed_rows.pack

    def wrong(*arguments):
        run = right(*arguments)
        bounds = run.cu_seqlens.clone()
        bounds[1:-1] -= 1
        return packed_rows.PackedRow(run.input_ids, run.position_ids, bounds, run.lengths)

    texts = ["the model reads text", "a b c"]
    if fault == "bounds":
        monkeypatch.setattr(scoring, "pack", wrong)
    loaded = load_scorer(model_folder)
    if fault == "place":
        inner = loaded._log_probabilities
        loaded._log_probabilities = lambda copies, places, targets: inner(copies, [1] * len(places), targets)
    found = loaded.score(texts)
    assert np.abs(found - one_mask_at_a_time(model_folder, texts)).max() > 1e-2


def test_all_tokens_of_a_text_without_markers_are_scored(model_folder):
    file = model_folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    texts = ["the model", "a", ""]
    framed = load_scorer(model_folder).score(texts)
    file.write_text(json.dumps(content | {"post_processor": None}), encoding="utf-8")
    bare = load_scorer(model_folder).score(texts)
    assert framed[:, 1].tolist() == bare[:, 1].tolist() == [2, 1, 0]
    assert (framed[:2, 0] != bare[:2, 0]).all(), "markers are context"


def test_a_tokenizer_without_a_mask_is_refused(model_folder):
    tokenizer_of("BERT", WORDS).save_pretrained(model_folder)
    assert refusal_of(load_scorer, "TOK002", "has no mask token", model_folder).place == str(model_folder)


def pairs(*paradigms: str) -> list[MinimalPair]:
    return [
        MinimalPair("g", "b", name, name[0], "syntax" if name[0] == "x" else "other") for name in paradigms
    ]


def test_a_tie_is_wrong_and_paradigms_weigh_the_same():
    scores = np.zeros((8, 2))
    scores[:, 0] = [-1, -2, -1, -1, -3, -2, -1, -9]
    found = accuracies(pairs("x1", "x1", "x1", "y1"), scores)
    assert found["paradigms"] == {"x1": pytest.approx(1 / 3), "y1": 1.0}
    assert (found["ties"], found["accuracy"]) == (1, pytest.approx(2 / 3))
    assert found["phenomena"] == {"x": pytest.approx(1 / 3), "y": 1.0}
    assert found["fields"] == {"other": 1.0, "syntax": pytest.approx(1 / 3)}
    assert found["not_comparable"] == ["4 pairs of 2 paradigms; BLiMP has 67,000 pairs of 67 paradigms"]


def blimp_row(good: str, bad: str, paradigm: str) -> str:
    row = {"sentence_good": good, "sentence_bad": bad, "UID": paradigm, "linguistics_term": "t", "field": "f"}
    return json.dumps(row) + "\n"


@pytest.fixture
def blimp_data(tmp_path: Path) -> Path:
    folder = tmp_path / "blimp"
    folder.mkdir()
    for name in ("one", "two"):
        rows = [
            blimp_row(f"the {'a ' * (n % 4)} model reads", f"reads {'b ' * (n % 4)} the", name)
            for n in range(5)
        ]
        (folder / f"{name}.jsonl").write_text("".join(rows))
    return folder


@pytest.fixture
def settings(model_folder, tmp_path) -> Settings:
    return Settings(folder=str(model_folder), output=tmp_path / "scores.npy", device="cpu", texts_per_shard=6)


def test_blimp_counts_pairs_of_a_folder_and_of_one_file(blimp_data, settings, one_mask_at_a_time, tmp_path):
    found = evaluate_blimp(blimp_data, settings, None)
    assert (found["pairs"], list(found["paradigms"])) == (10, ["one", "two"])
    whole = tmp_path / "all.jsonl.gz"
    whole.write_bytes(gzip.compress(b"".join(file.read_bytes() for file in sorted(blimp_data.iterdir()))))
    again = evaluate_blimp(whole, replace(settings, output=tmp_path / "other.npy"), None)
    assert again["paradigms"] == found["paradigms"]
    table = tmp_path / "hub" / "one" / "train-00000-of-00001.parquet"
    table.parent.mkdir(parents=True)
    rows = [json.loads(line) for line in (blimp_data / "one.jsonl").read_text().splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), table)
    of_table = evaluate_blimp(tmp_path / "hub", replace(settings, output=tmp_path / "table.npy"), None)
    assert of_table["paradigms"] == {"one": found["paradigms"]["one"]}
    texts = [json.loads(line)[key] for line in (blimp_data / "one.jsonl").read_text().splitlines()
             for key in ("sentence_good", "sentence_bad")]  # fmt: skip
    naive = one_mask_at_a_time(Path(settings.folder), texts)[:, 0]
    assert found["paradigms"]["one"] == float((naive[0::2] > naive[1::2]).mean())


def test_the_first_pairs_of_each_paradigm_are_a_sample(blimp_data, settings):
    found = evaluate_blimp(blimp_data, settings, 2)
    assert (found["pairs"], len(found["not_comparable"])) == (4, 1)


@pytest.mark.parametrize("num_done", [0, 1, 3])
def test_a_stopped_evaluation_continues_to_the_same_scores(
    blimp_data, settings, tmp_path, monkeypatch, num_done
):
    whole = replace(settings, output=tmp_path / "whole.npy")
    wanted = evaluate_blimp(blimp_data, whole, None)
    right, calls = Scorer.score, []

    def score(self, texts, *rest):
        if len(calls) == num_done:
            raise KeyboardInterrupt
        calls.append(len(texts))
        return right(self, texts, *rest)

    monkeypatch.setattr(Scorer, "score", score)
    with pytest.raises(KeyboardInterrupt):
        evaluate_blimp(blimp_data, settings, None)
    calls.clear()
    num_done = 99
    found = evaluate_blimp(blimp_data, settings, None)
    assert settings.output.read_bytes() == whole.output.read_bytes()
    assert {**found, "seconds": 0} == {**wanted, "seconds": 0}


def test_a_finished_evaluation_is_not_repeated(blimp_data, settings, monkeypatch):
    found = evaluate_blimp(blimp_data, settings, None)
    monkeypatch.setattr(Scorer, "score", lambda *_: pytest.fail("scored again"))
    assert {**evaluate_blimp(blimp_data, settings, None), "seconds": 0} == {**found, "seconds": 0}


def test_a_result_of_other_settings_is_not_overwritten(tmp_path, settings):
    (tmp_path / "t.txt").write_text("the model reads\n")
    (tmp_path / "u.txt").write_text("the model writes\n")
    evaluate_texts(tmp_path / "t.txt", None, "train", settings)
    kept = settings.output.read_bytes()
    with pytest.raises(ProjectError, match="of another evaluation: max_length changed from null to 8"):
        evaluate_texts(tmp_path / "t.txt", None, "train", replace(settings, max_length=8))
    with pytest.raises(ProjectError, match="of another evaluation: texts changed"):
        evaluate_texts(tmp_path / "u.txt", None, "train", settings)
    assert settings.output.read_bytes() == kept


@pytest.mark.parametrize("row", ['{"sentence_good": "a"}', '{"sentence_good": " ", "sentence_bad": "a"}'])
def test_rows_that_are_no_pairs_are_refused(tmp_path, settings, row):
    """The likelihood of an empty sentence is 1."""
    (tmp_path / "x.jsonl").write_text(row + "\n")
    with pytest.raises(ProjectError, match="has no text in sentence_good or sentence_bad"):
        evaluate_blimp(tmp_path / "x.jsonl", settings, None)
    with pytest.raises(ProjectError, match=r"there are no \.jsonl or \.parquet files here"):
        evaluate_blimp(tmp_path / "missing", settings, None)


def test_files_without_texts_are_refused(tmp_path, settings):
    for name in ("texts.txt", "pairs.jsonl"):
        (tmp_path / name).touch()
    with pytest.raises(ProjectError, match="the file has no tokens"):
        evaluate_texts(tmp_path / "texts.txt", None, "train", settings)
    with pytest.raises(ProjectError, match="the data has no minimal pairs"):
        evaluate_blimp(tmp_path / "pairs.jsonl", settings, None)


def test_a_text_of_blank_lines_does_not_block_the_output(tmp_path, settings):
    blank, text = tmp_path / "blank.jsonl", tmp_path / "text.txt"
    blank.write_text('{"text": " "}\n' * 2)
    text.write_text("ba be bi")
    refusal_of(evaluate_texts, "pseudo-perplexity", "the file has no tokens", blank, None, "train", settings)
    assert evaluate_texts(text, None, "train", settings)["tokens"] > 0


def test_tokens_and_documents_weigh_differently():
    scores = np.array([[-10.0, 10], [-4.0, 2], [0.0, 0]])
    found = pseudo_perplexity(scores)
    assert (found["documents"], found["tokens"]) == (2, 12)
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(14 / 12))
    assert found["mean_of_documents"] == pytest.approx((math.e + math.exp(2)) / 2)
    assert found["median_of_documents"] == pytest.approx(math.exp(1.5))


def test_a_value_beyond_floats_is_none():
    found = pseudo_perplexity(np.array([[-1e6, 10.0], [-1.0, 1.0]]))
    assert (found["mean_of_documents"], found["pseudo_perplexity"]) == (None, None)
    assert found["loss_per_token"] == pytest.approx(1_000_001 / 11)


def test_pseudo_perplexity_of_a_file(tmp_path, settings, one_mask_at_a_time):
    texts = ["the model reads", "a b", "", "text " * 40]
    (tmp_path / "t.txt").write_text("\n".join(texts) + "\n")
    found = evaluate_texts(tmp_path / "t.txt", None, "train", settings)
    naive = one_mask_at_a_time(Path(settings.folder), texts)
    assert found["loss_per_token"] == pytest.approx(-naive[:, 0].sum() / naive[:, 1].sum(), rel=1e-5)
    assert (found["documents"], found["truncated"], found["tokens_lost"]) == (3, 1, 10)
    assert found["source"] == str(tmp_path / "t.txt")


@pytest.mark.parametrize("loss", [-1e6, float("nan")])
def test_a_pseudo_perplexity_that_is_not_finite_is_an_error_and_leaves_nothing(
    tmp_path, settings, monkeypatch, loss
):
    """It was a `-` with exit code 0. The scores may be those of an earlier version, which saved NaN."""
    (tmp_path / "t.txt").write_text("the model reads\n")
    monkeypatch.setattr(Scorer, "score", lambda *_: np.array([[loss, 3.0]]))
    with pytest.raises(ProjectError, match="has no finite perplexity") as caught:
        evaluate_texts(tmp_path / "t.txt", None, "train", settings)
    assert (caught.value.exit_code, caught.value.place) == (EXIT_TRAINING_FAILED, settings.folder)
    assert "pass another checkpoint" in caught.value.hint
    monkeypatch.undo()
    assert evaluate_texts(tmp_path / "t.txt", None, "train", settings)["tokens"] == 3


def test_a_checkpoint_without_a_decoder_is_refused(model_folder, settings, tmp_path):
    from safetensors.torch import load_file, save_file

    file = model_folder / "model.safetensors"
    state = {name: tensor for name, tensor in load_file(file).items() if not name.startswith("decoder")}
    save_file(state, file)
    (tmp_path / "t.txt").write_text("a\n")
    error = refusal_of(evaluate_texts, "EXP005", "decoder", tmp_path / "t.txt", None, "train", settings)
    assert "pretraining run" in error.hint


@pytest.mark.parametrize("head", [NeoBERTForSequenceClassification, NeoBERTForTokenClassification])
def test_a_fine_tuned_model_with_a_tied_embedding_is_refused(tmp_path, tokenizer_dir, settings, head):
    config = NeoBERTConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, tie_word_embeddings=True, attn_backend="sdpa",
    )  # fmt: skip
    files = read_tokenizer_files(tokenizer_dir)
    (tmp_path / "t.txt").write_text("the model\n")
    write_hf_folder(NeoBERTLMHead(config), files, tmp_path / "tied")
    of_folder = replace(settings, folder=str(tmp_path / "tied"), output=tmp_path / "tied.npy")
    assert evaluate_texts(tmp_path / "t.txt", None, "train", of_folder)["documents"] == 1
    write_hf_folder(head(config), files, tmp_path / "tuned")
    of_folder = replace(settings, folder=str(tmp_path / "tuned"), output=tmp_path / "tuned.npy")
    message = f"is a {head.__name__}, which was not trained to predict masked tokens"
    error = refusal_of(evaluate_texts, "EXP005", message, tmp_path / "t.txt", None, "train", of_folder)
    assert "pretraining run" in error.hint


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_the_commands_write_results_and_tables(model_folder, blimp_data, tmp_path, capsys):
    output = tmp_path / "out"
    words = ["evaluate", "blimp", model_folder, blimp_data, "-o", output, "--device", "cpu"]
    assert app.run([str(word) for word in words]) == 0
    table = capsys.readouterr().out
    result = json.loads((output / "blimp.json").read_text())
    assert "not comparable" in table
    assert f"{100 * result['accuracy']:.1f}" in table
    (tmp_path / "t.txt").write_text("the model reads\n")
    words = [
        "evaluate",
        "pseudo-perplexity",
        model_folder,
        tmp_path / "t.txt",
        "-o",
        output,
        "--device",
        "cpu",
    ]
    assert app.run([str(word) for word in words]) == 0
    assert json.loads((output / "pseudo-perplexity.json").read_text())["documents"] == 1


@pytest.mark.skipif(BLIMP is None, reason="NEOBERT_BLIMP names the file or folder of BLiMP")
def test_published_pairs_are_complete(settings, monkeypatch):
    monkeypatch.setattr(Scorer, "score", lambda self, texts, *_: np.zeros((len(texts), 2)))
    found = evaluate_blimp(Path(str(BLIMP)), replace(settings, texts_per_shard=20_000), None)
    assert (found["pairs"], found["ties"], found["accuracy"], found["not_comparable"]) == (
        67_000,
        67_000,
        0,
        [],
    )
