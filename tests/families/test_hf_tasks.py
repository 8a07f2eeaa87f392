"""Every task on every transformers encoder: trained from a checkpoint, with an adapter, and encoded."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import processors
from transformers import (
    AutoModel,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedTokenizerFast,
)

from neobert.config import from_dict
from neobert.data.batches.microbatch import Assembler
from neobert.data.batches.shape import BatchShape
from neobert.data.batches.windows import Cursor
from neobert.data.examples import load_examples
from neobert.data.store.segment_store import Segments, positions_in_segments
from neobert.data.tokenize.tokenizers import build_bundle
from neobert.encoding import Encoder
from neobert.families.backbone import build_backbone
from neobert.families.hf.attention import use_attention
from neobert.tasks.rank_data import objective_inputs
from tests.families.layouts import PACKED, SMALL
from tests.families.rows import LABELS, OF_SEVERAL_TEXTS, WORDS, write_rows
from tests.families.test_hf import WORLD, described
from tests.training.conftest import TINY

PeftModel = pytest.importorskip("peft", reason="adapters need the extra lora").PeftModel
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
STEPS = {"max_steps": 2, "save_steps": 2, "eval_steps": 2, "gradient_accumulation_steps": 1}
ADAPTED = {"adapter": {"type": "lora", "r": 2}}
WHOLE = {"optimizer": {"lr": 1e-3}}
COMPARED = {
    "pairs": (AutoModelForSequenceClassification, "logits"),
    "tags": (AutoModelForTokenClassification, "logits"),
    "answers": (AutoModelForQuestionAnswering, "start_logits"),
    "choices": (AutoModelForMultipleChoice, "logits"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Rows for each task, and a tokenizer with the special tokens and the pairs of a RoBERTa."""
    folder = tmp_path_factory.mktemp("files")
    write_rows(folder)
    return folder


@pytest.fixture
def trained(files, make_run, run, monkeypatch):
    """Train a few steps and return the checkpoint."""

    def train(architecture, rows, section, **more):
        monkeypatch.setitem(TINY, "model", section)
        data = {"path": str(files / f"{rows}.jsonl"), "cache_dir": str(files / "cache"), "eval_samples": 8}
        data |= {"long_documents": "split" if rows in ("text", "answers") else "truncate"}
        made = make_run(
            f"run-{rows}",
            dataset=data,
            tokenizer={"path": str(files / "tokenizer"), "vocab_size": None},
            datacollator={"pack_sequences": architecture in PACKED},
            trainer=STEPS,
            **more,
        )
        assert run(made) == 0
        return made / "checkpoints" / "2"

    return train


@torch.no_grad()
@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("architecture", ["bert", "electra", "roberta"])
def test_the_second_text_of_a_pair_has_its_token_type(files, tmp_path, architecture, packs):
    names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(files / "tokenizer", model_input_names=names)
    if architecture != "roberta":
        tokenizer.backend_tokenizer.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 0))
    pairs = [(" ".join(WORDS[:3]), "ba be"), (f"ba </s> {WORDS[3]}", " ".join(WORDS[5:9]))]
    rows = [tokenizer(*pair, return_tensors="pt", split_special_tokens=True) for pair in pairs]
    assert rows[0]["token_type_ids"].any() == (architecture != "roberta")
    assert len({(row.input_ids == 2).sum().item() for row in rows}) == 1, "a literal separator is text"
    values = {"model": described(tmp_path, architecture), **LABELS["pairs"]}
    dataset = {"max_seq_length": 32, "long_documents": "truncate"}
    values |= {"dataset": dataset, "datacollator": {"pack_sequences": packs}}
    config = from_dict(values | {"trainer": {"mixed_precision": "no", "torch_compile": False}})
    auto = "AutoModelForSequenceClassification"
    tokens = build_bundle(tokenizer, "here")
    backbone = build_backbone(config, tokens, 128, WORLD, auto, {"pooling": "cls"})
    backbone.model.eval()
    states = backbone.hidden(objective_inputs(microbatch_of(config, tokens, pairs), torch.device("cpu")))
    lengths = [row.input_ids.shape[1] for row in rows]
    states = states[: sum(lengths)].split(lengths) if packs else states.unflatten(0, (2, -1))
    for ours, row in zip(states, rows, strict=True):
        types = {} if architecture == "roberta" else {"token_type_ids": row["token_type_ids"]}
        with use_attention(backbone.model, "eager"):
            wanted = backbone.model.base_model(row.input_ids, **types).last_hidden_state[0]
        torch.testing.assert_close(ours[: len(wanted)], wanted, atol=1e-5, rtol=1e-5)


def microbatch_of(config, tokens, pairs):
    """Encode pairs as training does, and return them in a microbatch."""
    examples = load_examples(config)
    named = ({"text": first, "pair": second, "label": 0} for first, second in pairs)
    encoded = examples.encoder(tokens).encode(named)
    count = np.arange(len(encoded.lengths))
    ids, lengths = encoded.tokens.astype(np.int64), encoded.lengths
    segments = Segments(ids, positions_in_segments(lengths), count, count, lengths, encoded.columns)
    is_packed = config.datacollator.pack_sequences
    shape = BatchShape(2, 32, 2, is_packed=is_packed)
    rule = examples.target_rule(tokens)
    assembler = Assembler(shape, rule, 0, tokens.filler_id, 128, types_pairs=tokens.types_pairs)
    store = SimpleNamespace(gather=lambda *_: segments)
    return assembler.build(store, count, 0, 0, Cursor())


@torch.no_grad()
def compare_with_peft(pretrained, checkpoint, rows):
    """The adapter on the pretrained model, as peft loads both, computes what the merged model computes."""
    auto, output = COMPARED[rows]
    merged = auto.from_pretrained(checkpoint).eval()
    base = auto.from_pretrained(pretrained, config=merged.config)  # with its pooling
    adapted = PeftModel.from_pretrained(base, checkpoint / "adapter").eval()
    ids = torch.tensor([[[0, 7, 9, 11, 2]]] if rows == "choices" else [[0, 7, 9, 11, 2]])
    torch.testing.assert_close(adapted(ids)[output], merged(ids)[output], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", SMALL)
def test_every_task_starts_from_a_pretrained_encoder(trained, files, tmp_path, architecture):
    pretrained = trained(architecture, "text", described(tmp_path, architecture))
    section = {"type": "hf", "pretrained_checkpoint": str(pretrained)}
    for rows, task in LABELS.items():
        checkpoint = trained(architecture, rows, section, **task, **(ADAPTED if rows != "scores" else WHOLE))
        if rows != "scores":
            compare_with_peft(pretrained, checkpoint, rows)
    loaded, encoder = Encoder.load(pretrained, pooling="avg"), AutoModel.from_pretrained(pretrained).eval()
    texts = [" ".join(WORDS[start : start + 3 + start]) for start in (5, 0, 2)]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(files / "tokenizer")
    with torch.no_grad():
        wanted = [encoder(tokenizer(text, return_tensors="pt").input_ids)[0].mean(1)[0] for text in texts]
    assert np.allclose(loaded.encode(texts), torch.stack(wanted), atol=1e-5)


@pytest.mark.parametrize("rows", OF_SEVERAL_TEXTS)
def test_answers_and_choices_are_learned_with_an_adapter(trained, tmp_path, rows):
    pretrained = trained("bert", "text", described(tmp_path, "bert"))
    section = {"type": "hf", "pretrained_checkpoint": str(pretrained)}
    checkpoint = trained("bert", rows, section, **OF_SEVERAL_TEXTS[rows], **ADAPTED)
    compare_with_peft(pretrained, checkpoint, rows)
