"""Choices: from the forms of SWAG, HellaSwag and ARC to a model that transformers loads."""

import json
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForMultipleChoice

from neobert.config import from_dict
from neobert.config.schema import TokenizerConfig
from neobert.data.examples import load_examples
from neobert.data.sources.text_files import read_rows
from neobert.data.store.prepare import prepare
from neobert.data.tokenize.encoding import GROUP
from neobert.data.tokenize.tokenizers import load_tokenizer
from neobert.errors import ProjectError
from neobert.export.weights import read_weights
from neobert.tasks.multiple_choice.labels import choice_index, row_choices
from neobert.tasks.multiple_choice.objective import LOWEST, group_by_row
from neobert.tasks.multiple_choice.rows import choice_fields
from neobert.tasks.specs import spec_of
from tests.refusals import refusal_of
from tests.tasks.conftest import options_of

RIGHT, WRONG = "hums softly", ("barks", "purrs", "sings", "swims away")


def rows(count: int, seed: int) -> list[dict[str, object]]:
    """Prompts with two to four choices, of which the right one is always the same."""
    draw, found = random.Random(seed), []
    for number in range(count):
        choices = [RIGHT, *draw.sample(WRONG, draw.randint(1, 3))]
        draw.shuffle(choices)
        prompt = f"on day {number} it came and"
        found.append({"question": prompt, "choices": choices, "label": choices.index(RIGHT)})
    return found


options = partial(options_of, "multiple_choice")


@pytest.fixture(scope="session")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("choices") / "mc.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows(160, 1)))
    return path


# --- rows

ARC = {"text": ["gas", "ice", "fog"], "label": ["1", "2", "3"]}
SWAG = {"choice_columns": ["ending0", "ending1", "ending2"], "max_choices": 3, "start_column": "sent2"}


@pytest.mark.parametrize(
    ("values", "section", "choices", "right"),
    [
        ({"question": "q", "choices": ["a", "b c"], "label": 1}, {}, ["a", "b c"], 1),
        ({"question": "q", "options": ["a", "b"], "label": "B"}, {}, ["a", "b"], 1),  # of RACE
        ({"ctx": "q", "endings": ["a\nb", "c", ""], "label": "0"}, {}, ["a b", "c"], 0),  # of HellaSwag
        ({"question": "q", "choices": ARC, "key": "2"}, {"label_column": "key"}, ["gas", "ice", "fog"], 1),
        ({"sent1": "q", "sent2": "It", "ending0": "a", "ending1": "b", "ending2": "", "label": 1}, SWAG,
         ["a", "b"], 1),
    ],
)  # fmt: skip
def test_the_forms_of_choices_are_read(tmp_path, values, section, choices, right):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(values))
    config = from_dict(options(path, section))
    (row,) = read_rows(path, spec_of(config).rows(config))
    found = row_choices(row, choice_fields(config))
    assert (found, choice_index(row, len(found)), row["text"]) == (choices, right, "q")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"choices": ["a"], "label": 0}, "the row has 1 choice (must have 2 to 4)"),
        ({"choices": [*"abcde"], "label": 0}, "the row has 5 choices (must have 2 to 4)"),
        ({"choices": ["a", " ", "b"], "label": 0}, "choice 1 is empty"),
        ({"choices": ["a", "b"], "label": 2}, "label '2' is not a number from 0 to 1"),
        ({"choices": ["a", "b"], "label": -1}, "label '-1' is not a number"),
        ({"choices": ["a", "b"], "label": "C"}, "label 'C' is not a number from 0 to 1, or a letter from A"),
        ({"choices": ["a", "b"], "label": None}, "the row has no label"),
        ({"choices": ["a", "b"], "label": True}, "the label is true or false"),
        ({"choices": ARC, "label": "B"}, "label 'B' is not one of 1, 2, 3"),
        ({"choices": "a b", "label": 0}, "the choices are text, expected a list"),
        ({"choices": ["a", 5], "label": 0}, "a choice is a number, not text"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_their_place(tmp_path, values, problem):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"question": "q", **values}))
    config = from_dict(options(path))
    error = refusal_of(list, "DAT020", problem, read_rows(path, spec_of(config).rows(config)))
    assert error.place == f"{path}:1"
    assert ("subtract 1 from each" in error.hint) == (values["label"] == 2)


def test_a_choice_is_a_pair_with_the_prompt(tmp_path):
    tokenizer = load_tokenizer(TokenizerConfig(vocab_size=128), ["the dog came and barks loudly"] * 20)
    row = {"text": "the dog", "start": "and", "choices": "barks\ncame loudly", "label": "1"}
    config = from_dict(options(Path("x"), {"start_column": "s"}, dataset={"max_seq_length": 24}))
    encoded = load_examples(config).encoder(tokenizer).encode([row])
    wanted = [tokenizer.tokenizer("the dog", f"and {end}").input_ids for end in ("barks", "came loudly")]
    assert encoded.tokens.tolist() == [token for each in wanted for token in each]
    assert encoded.lengths.tolist() == [*map(len, wanted)]
    assert encoded.columns["label"].tolist() == [1, -100]
    assert encoded.columns[GROUP].tolist() == [0, 1]
    assert encoded.counts.labels == {"1": 1}
    for fate, segments in (("truncate", 2), ("drop", 0)):
        short = from_dict(options(Path("x"), dataset={"max_seq_length": 7, "long_documents": fate}))
        cut = load_examples(short).encoder(tokenizer).encode([row])
        assert (len(cut.lengths), len(cut.example_lengths)) == (segments, segments // 2)
        assert max(cut.lengths, default=7) == 7


@given(st.lists(st.integers(1, 4), min_size=1, max_size=7), st.integers(0, 3))
def test_logits_by_row_are_those_of_its_segments(sizes, padding):
    total = sum(sizes)
    groups = torch.tensor([row for row, size in enumerate(sizes) for _ in range(size)] + [-1] * padding)
    logits, labels = torch.arange(total + padding) * 1.0, torch.full((total + padding,), -100)
    firsts = np.cumsum([0, *sizes[:-1]])
    labels[firsts] = torch.tensor([size - 1 for size in sizes])
    found, right = group_by_row(logits, labels, groups, 4)
    for row, (first, size) in enumerate(zip(firsts, sizes, strict=True)):
        assert found[row, :size].tolist() == logits[first : first + size].tolist()
        assert (found[row, size:] == LOWEST).all()
        assert right[row] == size - 1
    assert (right[len(sizes) :] == -100).all()


# --- whole runs


def test_a_killed_run_ends_as_the_unbroken_one(killed_run, metrics, file):
    """Trains packed rows of two to four choices, keeps the best checkpoint, and resumes to the last bit."""
    trainer = {"max_steps": 30, "eval_steps": 15, "save_steps": 15, "metric_for_best_model": "eval/accuracy"}
    whole = killed_run(20, **options(file, trainer=trainer))
    lines = metrics(whole)
    assert lines[-1]["eval/accuracy"] > 0.9
    assert lines[-1]["eval/loss"] < lines[0]["eval/loss"] / 2
    folder = whole / "checkpoints" / "30"
    model = AutoModelForMultipleChoice.from_pretrained(folder)
    saved = read_weights(folder)
    assert all(torch.equal(saved[name], each) for name, each in model.state_dict().items())
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: multiple-choice" in card
    assert "model(**{name: each[None] for name, each in rows.items()})" in card


def test_padded_rows_hold_whole_examples(make_run, run, metrics, file):
    trainer = {"max_steps": 2, "eval_steps": 0, "save_steps": 0, "per_device_train_batch_size": 9}
    padded = options(file, trainer=trainer, datacollator={"pack_sequences": False})
    assert run(make_run(**padded)) == 0
    with pytest.raises(ProjectError, match="an example has up to 4 texts, but a microbatch has 3 rows"):
        prepare(from_dict(padded | {"trainer": {"per_device_train_batch_size": 3}}))
