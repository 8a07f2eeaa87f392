"""Pretraining of a causal model: its labels, and runs that are killed, continued, adapted and loaded."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from neobert.config import from_dict
from neobert.data.batches.targets import IGNORED
from neobert.data.examples import load_examples
from neobert.data.store.prepare import prepare
from neobert.data.store.segment_store import Segments, positions_in_segments
from neobert.data.tokenize.encoding import Column, Counts
from neobert.errors import ProjectError
from neobert.families.table import model_shape
from neobert.plan.size import flops_per_token
from neobert.prediction.kinds import read_model_task
from neobert.tasks.next_tokens import NextTokens, check_targets
from tests.killed_run import killed_before
from tests.training.conftest import finished_run

LLAMA = {"type": "hf", "architecture": "llama", "num_key_value_heads": 1}
CAUSAL = {"task": "causal", "model": LLAMA, "trainer": {"metric_for_best_model": "eval/loss"}}


def segments_of(lengths, **columns) -> Segments:
    sizes = np.array(lengths, np.int64)
    number = np.arange(len(lengths))
    return Segments(
        np.arange(sizes.sum()) + 100, positions_in_segments(sizes), number, number, sizes, columns
    )


@given(lengths=st.lists(st.integers(1, 9), max_size=8), marks=st.integers(0, 2**72 - 1))
def test_a_label_is_the_next_token_of_the_document_or_nothing(lengths, marks):
    supervised = np.array([marks >> place & 1 for place in range(sum(lengths))], np.uint8)
    found = segments_of(lengths, supervised=supervised)
    for rule in (NextTokens(), NextTokens(Column("supervised", "uint8", is_per_token=True))):
        targets, place = rule.targets(found, epoch=0, seed=0), 0
        assert targets.input_ids is found.ids
        for length in lengths:
            is_learned = supervised[place + 1 : place + length] | (rule.supervised is None)
            after = np.where(is_learned, found.ids[place + 1 : place + length], IGNORED)
            assert targets.labels[place : place + length].tolist() == [*after, IGNORED]
            place += length


def test_text_without_a_second_token_is_refused():
    with pytest.raises(ProjectError, match="no document has two tokens"):
        check_targets("text", Counts(tokens=7, segments=7))


def test_the_end_of_a_text_is_learned_and_is_only_behind_its_last_piece(make_run):
    run_dir = make_run(**CAUSAL, dataset={"long_documents": "split", "max_seq_length": 16})
    config = from_dict(json.loads((run_dir / "resolved.json").read_text()))
    prepared = prepare(config)
    store, end = prepared.train, prepared.tokenizer.end_id
    pieces = [store.segment(number) for number in range(store.num_segments)]
    ends = sum(int(piece[-1]) == end for piece in pieces)
    framing = load_examples(config).framing(prepared.tokenizer)
    starts = sum(int(piece[0]) == framing.start[0] for piece in pieces)
    assert starts == ends < len(pieces)


def test_flops_are_the_plans_and_a_frozen_head_has_no_weight_gradient():
    adapted = {"adapter": {"type": "lora"}}
    whole, few = (from_dict({"task": "causal", "model": LLAMA} | more) for more in ({}, adapted))
    shapes = [model_shape(config, 256) for config in (whole, few)]
    assert [shape.trained_parameters.decoder for shape in shapes] == [shapes[0].parameters.decoder, 0]
    per_token = [flops_per_token(config, shape, 1) - shape.product_flops for config, shape in
                 zip((whole, few), shapes, strict=True)]  # fmt: skip
    assert per_token[0] - per_token[1] == 2 * shapes[0].decoder_products


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus):
    """A run without a stop: its folder."""
    return finished_run(tmp_path_factory.mktemp("causal") / "run", corpus, CAUSAL)


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def test_a_killed_run_ends_as_the_unbroken_one(killed_run, metrics, finished):
    killed_run(7, finished, **CAUSAL)
    lines = metrics(finished)
    losses = [line["eval/loss"] for line in lines if "eval/loss" in line]
    assert losses[-1] < losses[0] - 0.3
    assert lines[-1]["eval/perplexity"] == pytest.approx(math.exp(losses[-1]))
    assert (finished / "checkpoints" / "best").resolve().name == "12"


def test_transformers_loads_a_checkpoint_and_computes_the_same_loss(finished, metrics):
    """The loss of the last evaluation, by transformers: each document alone, labels shifted by the model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = finished / "checkpoints" / "12"
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    prepared = prepare(from_dict(json.loads((finished / "resolved.json").read_text())))
    loss, num_targets = 0.0, 0
    for number in range(prepared.eval.num_segments):
        ids = torch.from_numpy(prepared.eval.segment(number).astype(np.int64))[None]
        with torch.no_grad():
            loss += float(model(ids, labels=ids).loss) * (ids.numel() - 1)
        num_targets += ids.numel() - 1
    assert loss / num_targets == pytest.approx(metrics(finished)[-1]["eval/loss"], rel=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("badu").input_ids == prepared.tokenizer.tokenizer("badu").input_ids
    assert model.config.eos_token_id == prepared.tokenizer.end_id


def test_a_prompt_for_the_saved_tokenizer_has_a_start_and_no_end(finished):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(finished / "checkpoints" / "12")
    ids = tokenizer("some words")["input_ids"]
    assert (ids[0], tokenizer.eos_token_id in ids) == (tokenizer.bos_token_id, False)
    assert None not in (tokenizer.bos_token_id, tokenizer.eos_token_id)


def test_a_causal_model_has_no_predictions_of_labels(finished):
    with pytest.raises(ProjectError, match="predicts next tokens, not labels") as refused:
        read_model_task(finished / "checkpoints" / "12")
    assert "evaluate generation" in refused.value.hint


def test_a_run_continues_weights_and_an_adapter_leaves_them_as_they_are(make_run, run, metrics, finished):
    base = finished / "checkpoints" / "12"
    start = {"model": {"type": "hf", "pretrained_checkpoint": str(base)}, "tokenizer": {"path": str(base)}}
    alone = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    start["model"] |= dict.fromkeys(alone) | {"max_position_embeddings": None}
    last = metrics(finished)[-1]["eval/loss"]

    whole = make_run("whole", **CAUSAL | start, optimizer={"lr": 1e-3})
    assert run(whole) == 0
    losses = [line["eval/loss"] for line in metrics(whole) if "eval/loss" in line]
    assert losses[0] == pytest.approx(last, rel=1e-5)
    assert losses[-1] < losses[0]

    pytest.importorskip("peft", reason="adapters need the extra lora")
    adapted = make_run("adapted", **CAUSAL | start, adapter={"type": "lora", "r": 4})
    with killed_before(9):
        run(adapted)
    assert run(adapted) == 0
    losses = [line["eval/loss"] for line in metrics(adapted) if "eval/loss" in line]
    assert losses[0] == pytest.approx(last, rel=1e-5)
    assert losses[-1] < losses[0]
    end = adapted / "checkpoints" / "12"
    before, merged = weights_of(base), weights_of(end)
    changed = {name for name, each in merged.items() if not torch.equal(each, before[name])}
    assert changed == {name for name in before if "_proj" in name}
    kinds = json.loads((end / "adapter" / "adapter_config.json").read_text())
    assert (kinds["task_type"], kinds["modules_to_save"]) == ("CAUSAL_LM", None)


def test_a_stream_of_text_is_learned(killed_run):
    killed_run(6, **CAUSAL | {"dataset": {"streaming": True, "num_workers": 1}})
