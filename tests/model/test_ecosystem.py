"""Input under transformers' names, and attention functions of its registry."""

import pytest
import torch
import torch.nn.functional as F
from transformers import DataCollatorWithFlattening
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from neobert.model import NeoBERT, NeoBERTForSequenceClassification
from neobert.model.modeling_neobert import (
    NeoBERTForMultipleChoice,
    NeoBERTForQuestionAnswering,
    NeoBERTForTokenClassification,
)

LENGTHS = (5, 1, 9, 4)


@pytest.fixture
def texts():
    return [torch.randint(5, 96, (length,)) for length in LENGTHS]


@pytest.fixture
def flat(texts):
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_position_ids=True)
    batch = collate([{"input_ids": text.tolist()} for text in texts])
    batch.pop("labels")
    return batch


@pytest.fixture
def padded(texts):
    rows = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    return {"input_ids": rows, "attention_mask": mask}


@pytest.fixture
def registered(monkeypatch):
    """A function of the registry that attends within the segments it is given; returns its calls."""
    calls = []

    def attend(block, q, k, v, mask, scaling, is_causal, cu_seq_lens_q=None, **kwargs):
        calls.append((block.layer_idx, is_causal or block.is_causal, mask, cu_seq_lens_q, kwargs))
        if cu_seq_lens_q is None:
            mask = None if mask is None else mask[:, None, None, :].bool()
            return F.scaled_dot_product_attention(q, k, v, mask, scale=scaling).transpose(1, 2), None
        parts = [x.split(cu_seq_lens_q.diff().tolist(), 2) for x in (q, k, v)]
        outs = [F.scaled_dot_product_attention(*part, scale=scaling) for part in zip(*parts, strict=True)]
        return torch.cat(outs, 2).transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_by_formula", attend)
    return calls


def rows_of(hidden, attention_mask):
    return hidden[attention_mask.bool()]


def test_packed_texts_under_the_names_of_transformers_give_what_padded_ones_give(make_model, flat, padded):
    model = make_model()
    wanted = rows_of(model(**padded).logits, padded["attention_mask"])
    torch.testing.assert_close(model(**flat).logits[0], wanted, atol=1e-5, rtol=1e-5)
    by_own_names = model(flat["input_ids"], cu_seqlens=flat["cu_seq_lens_q"], max_seqlen=flat["max_length_q"])
    assert torch.equal(model(**flat).logits, by_own_names.logits)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_positions_that_restart_isolate_texts(make_model, flat, padded, is_compiled):
    model = make_model(num_hidden_layers=1 if is_compiled else 3)
    wanted = rows_of(model(**padded).logits, padded["attention_mask"])
    run = torch.compile(model, backend="eager", fullgraph=True) if is_compiled else model
    found = run(flat["input_ids"], position_ids=flat["position_ids"]).logits[0]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    running_on = run(flat["input_ids"], position_ids=torch.arange(sum(LENGTHS))[None]).logits[0]
    assert not torch.allclose(running_on, wanted, atol=1e-2)


def test_a_registered_function_gets_blocks_and_arguments(make_model, flat, padded, registered):
    model = make_model()
    wanted = rows_of(model(**padded).logits, padded["attention_mask"])
    model.config._attn_implementation = "flash_by_formula"
    found = model(**flat, serving=1).logits[0]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert [call[0] for call in registered] == [0, 1, 2]
    for _, is_causal, mask, bounds, kwargs in registered:
        assert not is_causal
        assert mask is None
        assert bounds.tolist() == [0, 5, 6, 15, 19]
        assert (kwargs["max_length_q"], kwargs["max_length_k"], kwargs["serving"]) == (9, 9, 1)
    torch.testing.assert_close(rows_of(model(**padded).logits, padded["attention_mask"]), wanted)
    assert torch.equal(registered[-1][2], padded["attention_mask"])


def test_a_serving_engine_keeps_the_texts_of_its_row_apart_itself(make_model, registered, monkeypatch):
    function = ALL_ATTENTION_FUNCTIONS["flash_by_formula"]
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "engine", function)
    model = make_model(max_position_embeddings=6)
    model.config._attn_implementation = "engine"
    positions = torch.arange(12)[None] % 6
    assert (
        model(torch.ones_like(positions), position_ids=positions, attention_instances={}).logits.shape[1]
        == 12
    )
    assert registered[0][3] is None
    assert registered[0][4]["attention_instances"] == {}


def test_the_model_declares_what_it_supports(make_model):
    model = make_model()
    assert model.is_backend_compatible()
    assert model._supports_flash_attn
    assert model._supports_flex_attn


def test_a_row_beyond_the_positions_is_refused_by_its_shape(make_config):
    with torch.device("meta"):  # where no value can be read
        model = NeoBERT(make_config(max_position_embeddings=6))
        assert model(torch.ones(2, 6, dtype=torch.long)).last_hidden_state.shape == (2, 6, 32)
        with pytest.raises(ValueError, match=r"a row of 7 tokens exceeds max_position_embeddings \(6\)"):
            model(torch.ones(2, 7, dtype=torch.long))
        ids, bounds = torch.ones(1, 9, dtype=torch.long), torch.tensor([0, 7, 9], dtype=torch.int32)
        with pytest.raises(ValueError, match="a row of 7 tokens"):
            model(ids, cu_seq_lens_q=bounds, cu_seq_lens_k=bounds, max_length_q=7, max_length_k=7)


def test_the_limit_breaks_no_graph(make_model):
    model = make_model(max_position_embeddings=8, num_hidden_layers=1)
    run = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for length in (3, 5, 8):
        ids = torch.randint(5, 96, (2, length))
        torch.testing.assert_close(run(ids).logits, model(ids).logits)


@pytest.mark.parametrize("scaling", ["rope_scaling", "rope_parameters"])
def test_scaled_positions_are_refused(make_config, scaling):
    with pytest.raises(ValueError, match=f"{scaling} is not supported"):
        make_config(**{scaling: {"rope_type": "linear", "factor": 2.0}})


@pytest.mark.parametrize("how", ["avg", "cls", "max"])
def test_the_classifier_pools_packed_texts_as_padded_ones(make_config, flat, padded, how):
    model = NeoBERTForSequenceClassification(make_config(pooling=how, num_labels=3)).eval()
    restarting = {name: flat[name] for name in ("input_ids", "position_ids")}
    labels = torch.tensor([0, 2, 1, 1])
    wanted = model(**padded, labels=labels)
    for found in (model(**flat, labels=labels), model(**restarting, labels=labels)):
        torch.testing.assert_close(found.logits, wanted.logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.loss, wanted.loss)
    one_text = model(flat["input_ids"], position_ids=torch.arange(sum(LENGTHS))[None]).logits
    torch.testing.assert_close(one_text, model(flat["input_ids"]).logits)


def test_a_compiled_classifier_refuses_positions_whose_texts_it_cannot_count(make_config, flat):
    model = NeoBERTForSequenceClassification(make_config()).eval()
    run = torch.compile(model, backend="eager", fullgraph=True)
    bounds = flat["cu_seq_lens_q"]
    assert model(flat["input_ids"], cu_seq_lens_q=bounds, max_length_q=9).logits.shape == (4, 2)
    with pytest.raises(Exception, match="pass cu_seq_lens_q for packed texts"):
        run(flat["input_ids"], position_ids=flat["position_ids"])


def test_token_classification(make_config, flat, padded):
    model = NeoBERTForTokenClassification(make_config(num_labels=4)).eval()
    labels = torch.where(padded["attention_mask"].bool(), padded["input_ids"] % 4, -100)
    out = model(**padded, labels=labels)
    torch.testing.assert_close(out.loss, F.cross_entropy(out.logits.transpose(1, 2), labels))
    packed = model(**flat).logits[0]
    torch.testing.assert_close(packed, rows_of(out.logits, padded["attention_mask"]), atol=1e-5, rtol=1e-5)


def test_question_answering_ignores_answers_that_were_cut_off(make_config, padded):
    model = NeoBERTForQuestionAnswering(make_config()).eval()
    starts, ends = torch.tensor([1, 0, 3, 9]), torch.tensor([2, 0, 40, 9])
    out = model(**padded, start_positions=starts, end_positions=ends)
    by_start = F.cross_entropy(out.start_logits[:3], starts[:3])
    by_end = F.cross_entropy(out.end_logits[:2], ends[:2])
    torch.testing.assert_close(out.loss, (by_start + by_end) / 2)
    assert out.start_logits.shape == out.end_logits.shape == (4, 9)


def test_multiple_choice_scores_each_choice_by_itself(make_config, padded):
    model = NeoBERTForMultipleChoice(make_config(pooling="avg")).eval()
    questions = {name: value.unflatten(0, (2, 2)) for name, value in padded.items()}
    out = model(**questions, labels=torch.tensor([1, 0]))
    assert out.logits.shape == (2, 2)
    torch.testing.assert_close(out.loss, F.cross_entropy(out.logits, torch.tensor([1, 0])))
    alone = model(padded["input_ids"][None, :1, :5]).logits
    torch.testing.assert_close(alone[0, 0], out.logits[0, 0], atol=1e-5, rtol=1e-5)
