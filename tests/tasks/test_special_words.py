"""Texts that spell special tokens: plain text where a row has parts, in training and in predictions."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from neobert.config import from_dict
from neobert.config.schema import TokenizerConfig
from neobert.data.examples import load_examples
from neobert.data.tokenize.tokenizers import load_tokenizer
from neobert.encoding.tokens import TextTokenizer
from neobert.tasks.question_answering.labels import Answer
from neobert.tasks.question_answering.windows import WindowEncoder

FIRST, SECOND = "who [SEP] rejects", "EU [SEP] rejects[MASK] German [PAD]"
PAIRS = {
    "classification": ({"pair_column": "b"}, {"text": FIRST, "pair": SECOND, "label": 1}),
    "multiple_choice": ({}, {"text": FIRST, "choices": f"{SECOND}\nGerman", "label": "1"}),
    "question_answering": ({}, {"text": SECOND, "question": FIRST, "answers": (Answer("German", 24),)}),
}


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def tokenizer(request):
    texts = ["EU rejects German call in New York .", "who [ SEP ] MASK PAD ?"] * 20
    return load_tokenizer(TokenizerConfig(algorithm=request.param, vocab_size=400), texts)


def encoded(task, section, row, tokenizer):
    dataset = {"path": "x", "long_documents": "truncate", "max_seq_length": 64}
    config = from_dict({"task": task, task: section, "dataset": dataset})
    encoder = load_examples(config).encoder(tokenizer)
    found = pickle.loads(pickle.dumps(encoder)).encode([row])  # as tokenizing processes receive it
    return found.tokens[: found.lengths[0]].tolist(), found.columns


@pytest.mark.parametrize("task", PAIRS)
def test_the_parts_of_a_row_hold_no_special_token(task, tokenizer):
    """Only the tokenizer's framing has some, so the second part begins where the column says."""
    ids, columns = encoded(task, *PAIRS[task], tokenizer)
    framing, second = tokenizer.pair_framing, int(columns["second"][0])
    special = np.flatnonzero(~tokenizer.is_maskable[ids])
    ends = (len(framing.start), second - len(framing.between), second, len(ids) - len(framing.end))
    assert special.tolist() == [*range(ends[0]), *range(*ends[1:3]), *range(ends[3], len(ids))]
    reader = TextTokenizer(tokenizer, 64)
    (predicted,), seconds, _ = reader.tokenize_items([(FIRST, SECOND)])
    assert (predicted.tolist(), seconds) == (ids, [second])
    (found,) = WindowEncoder(reader.pairs, 0).split([(FIRST, SECOND)])
    assert [window.ids for window in found.windows] == [ids]


def test_a_text_by_itself_is_read_as_its_tokenizer_reads_it(tokenizer):
    """Fields that were joined by a separator have one, as in a pipeline."""
    ids, _ = encoded("classification", {}, {"text": SECOND, "label": 1}, tokenizer)
    (predicted,), _ = TextTokenizer(tokenizer, 64).tokenize([SECOND])
    assert ids == predicted.tolist() == tokenizer.tokenizer(SECOND).input_ids
    assert (~tokenizer.is_maskable[ids]).sum() == tokenizer.framing.size + 3


def test_a_file_of_pairs_that_was_prepared_earlier_is_prepared_again():
    for task, (section, _) in PAIRS.items():
        config = from_dict({"task": task, task: section, "dataset": {"path": str(Path("x"))}})
        assert load_examples(config).identity()["special_tokens"] == "plain text"
