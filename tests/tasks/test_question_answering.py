"""Answers to questions: from the forms of SQuAD to a model that transformers loads, and its answers."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForQuestionAnswering

from neobert.config import from_dict
from neobert.config.schema import TokenizerConfig
from neobert.data.batches.streams import EvalStream
from neobert.data.examples import load_examples
from neobert.data.sources.text_files import read_rows
from neobert.data.store.prepare import prepare
from neobert.data.tokenize.tokenizers import load_tokenizer
from neobert.errors import ProjectError
from neobert.export.weights import read_weights
from neobert.objectives.labelled import Predictions
from neobert.parallel import World
from neobert.precision.recipe import FP32
from neobert.tasks.question_answering import objective as spans_module
from neobert.tasks.question_answering.answers import answer_scores, best_window
from neobert.tasks.question_answering.evaluated import EvaluationText
from neobert.tasks.question_answering.labels import Answer
from neobert.tasks.question_answering.metrics import AnswerMetrics
from neobert.tasks.question_answering.objective import answer_positions, best_spans
from neobert.tasks.specs import reported_metrics, spec_of
from tests.refusals import refusal_of
from tests.tasks.conftest import options_of

NAMES, TOWNS = ("Mara Jonas", "Lina Vesu", "Tako Remi"), ("Norstad", "Altburg", "Wesmere")


def questions(count: int, seed: int) -> list[dict[str, object]]:
    """Questions as in SQuAD 2.0: each fourth has no answer in its context."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        name, town = draw.choice(NAMES), draw.choice(TOWNS)
        word = "".join(draw.choices("bdfgklmnprst", k=4))
        context = f"On day {word} it rained . {name} was born in {town} . Nobody went out ."
        requested, answer = draw.choice([("who was born ?", name), ("where was the birth ?", town)])
        texts, starts = [answer], [context.index(answer)]
        if number % 4 == 0:
            requested, texts, starts = "who won the race ?", [], []
        answers = {"text": texts, "answer_start": starts}
        rows.append({"question": requested, "context": context, "answers": answers})
    return rows


def options(path: Path, section=None, **more):
    section = {"null_threshold": 0.0, "doc_stride": 4} if section is None else section
    return options_of("question_answering", path, section, **more)


@pytest.fixture(scope="session")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "qa.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in questions(150, 1)))
    return path


# --- files


def rows_of(path: Path, section=None):
    config = from_dict(options(path, section))
    return list(read_rows(path, spec_of(config).rows(config)))


CONTEXT = "Ann met Bob and Ann"


@pytest.mark.parametrize(
    ("answers", "section", "wanted"),
    [
        ({"answers": {"text": ["Ann"], "answer_start": [16]}}, {}, [("Ann", 16)]),
        ({"answers": [{"text": "Bob", "answer_start": 8}, {"text": "met"}]}, {}, [("Bob", 8), ("met", None)]),
        ({"answer": "Bob"}, {}, [("Bob", None)]),
        ({"answer": ["Bob", "met Bob"]}, {}, [("Bob", None), ("met Bob", None)]),
        ({"answer": "Ann", "at": 16}, {"start_column": "at"}, [("Ann", None)]),
        ({"answers": {"text": [], "answer_start": []}}, {"null_threshold": 0.5}, []),
        ({"answers": None}, {"null_threshold": 0.5}, []),
        ({"answer": "Bob", "at": 3}, {"start_column": "at"}, [("Bob", None)]),  # there once: at 8
    ],
)
def test_the_forms_of_answers_are_read(tmp_path, answers, section, wanted):
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps({"question": "who", "context": CONTEXT, **answers}))
    (row,) = rows_of(file, section)
    assert list(row["answers"]) == [Answer(*each) for each in wanted]
    assert row["text"] == CONTEXT


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"answers": None}, "the row has no answer"),
        ({"answer": "Carl"}, "answer 'Carl' is not in the context"),
        ({"answer": "Ann"}, "answer 'Ann' occurs 2 times in the context"),
        ({"answers": {"text": ["Ann"], "answer_start": [1]}}, "but not at character 1"),
        ({"answers": {"text": ["Ann"], "answer_start": [1, 2]}}, "1 answer, but 2 values of answer_start"),
        ({"answers": {"text": ["Ann"], "answer_start": [-1]}}, "answer_start -1 is not the index"),
        ({"answer": 5}, "an answer is a number, not text"),
    ],
)
def test_rows_whose_answer_has_no_place_are_refused(tmp_path, answers, problem):
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps({"question": "who", "context": CONTEXT, **answers}))
    assert refusal_of(rows_of, "DAT020", problem, file, {}).place == f"{file}:1"


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        ("", "2 of 4 rows are refused"),
        ("{", "2 of the first 4 rows are refused"),
        ('{"question": "q"}', "3 of 5"),
    ],
)
def test_refused_rows_are_counted(tmp_path, end, shown):
    answers = ["Carl", "Bob", "Ann", "met Bob"]
    lines = [json.dumps({"question": "who", "context": CONTEXT, "answer": each}) for each in answers]
    (tmp_path / "train.jsonl").write_text("\n".join([*lines, end]))
    with pytest.raises(ProjectError, match=f"answer 'Carl' is not in the context; {shown}") as refusal:
        rows_of(tmp_path / "train.jsonl", {})
    assert refusal.value.place.endswith(":1")


def nested(rows) -> dict[str, object]:
    paragraphs = []
    for row in rows:
        texts, starts = row["answers"].values()
        answers = [{"text": text, "answer_start": at} for text, at in zip(texts, starts, strict=True)]
        question = {"id": "1", "question": row["question"], "answers": answers}
        paragraphs.append({"context": row["context"], "qas": [question]})
    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}


@pytest.mark.parametrize("indent", [None, 2])
def test_the_file_of_squad_has_the_rows_of_its_lines(tmp_path, file, indent):
    (tmp_path / "train.json").write_text(json.dumps(nested(questions(150, 1)), indent=indent))
    assert rows_of(tmp_path / "train.json", {"null_threshold": 0.0}) == rows_of(file, {"null_threshold": 0.0})
    (tmp_path / "train.json").write_text('{"data": [{"paragraphs": [{"context": "c"}]}]}')
    refusal_of(rows_of, "DAT001", "is not a SQuAD file: error after question 0", tmp_path / "train.json", {})
    (tmp_path / "train.json").write_text('{"data": [{"text": "a"}, {"text": "b"}]}')
    with pytest.raises(ProjectError, match="an entry of its list `data` has no `paragraphs`") as caught:
        rows_of(tmp_path / "train.json", {})
    assert "jq -c '.data[]'" in caught.value.hint


# --- windows


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def tokenizer(request):
    texts = ["EU rejects German call in New York .", "Café naïve, 3,141 (U.S.) ago"] * 20
    return load_tokenizer(TokenizerConfig(algorithm=request.param, vocab_size=400), texts)


WORD = st.text(st.characters(codec="utf-8", exclude_categories=["Zs", "Cc", "Cf"]), min_size=1, max_size=6)


@given(
    question=st.lists(WORD, max_size=9),
    words=st.lists(WORD, min_size=1, max_size=14),
    bounds=st.tuples(st.integers(0, 13), st.integers(0, 13)),
    length=st.integers(8, 40),
    stride=st.integers(0, 20),
)
def test_the_places_of_an_answer_are_its_text(tokenizer, question, words, bounds, length, stride):
    """In each window with the answer; the others have none, and all tokens of the context are covered."""
    first, last = sorted(min(each, len(words) - 1) for each in bounds)
    context, answer = " ".join(words), " ".join(words[first : last + 1])
    start = sum(len(word) + 1 for word in words[:first])
    section = {"doc_stride": stride}
    config = from_dict(options(Path("x"), section, dataset={"max_seq_length": length}))
    encoder = load_examples(config).encoder(tokenizer)
    row = {"question": " ".join(question), "text": context, "answers": (Answer(answer, start),)}
    encoded = encoder.encode([row])
    (found,) = encoder.split_rows([row])
    places = torch.stack(answer_positions(torch.from_numpy(encoded.columns["span"])), 1).tolist()
    assert len(places) == len(encoded.lengths) == len(found.windows)
    assert max(encoded.lengths, default=0) <= length
    tokens = found.token_span(start, start + len(answer))
    covered = set()
    for window, (begin, end) in zip(found.windows, places, strict=True):
        covered |= {*range(window.start, window.stop)}
        if tokens is not None and window.start <= tokens[0] and tokens[1] < window.stop:
            a, b = found.character_span(window, (begin, end), context)
            # A token of several characters may hold the end of the word before.
            assert answer in context[a:b] or context[a:b] in answer
            if (found.offsets[tokens[0], 0], found.offsets[tokens[1], 1]) in (
                (start, start + len(answer)), (start - 1, start + len(answer)),
            ):  # fmt: skip
                assert context[a:b] == answer
        else:
            assert [begin, end] == [0, 0]
    assert covered == {*range(len(found.offsets))}


def test_windows_frame_pairs_as_transformers_does(tokenizer):
    """As `return_overflowing_tokens` of a fast tokenizer, with a stride."""
    question, context = "who rejects", "EU rejects German call in New York . " * 12
    config = from_dict(options(Path("x"), {"doc_stride": 5}, dataset={"max_seq_length": 32}))
    row = {"question": question, "text": context, "answers": ()}
    (found,) = load_examples(config).encoder(tokenizer).split_rows([row])
    wanted = tokenizer.tokenizer(
        question, context, truncation="only_second", max_length=32, stride=5, return_overflowing_tokens=True
    )
    assert [window.ids for window in found.windows] == wanted.input_ids
    assert len(wanted.input_ids) > 2


@pytest.mark.parametrize(
    ("policy", "fate", "labels"),
    [("no_answer", "split", (1, 3)), ("ignored", "split", (1, 0)), ("no_answer", "truncate", (0, 1))],
)
def test_windows_without_the_answer_have_none_or_no_target(tokenizer, policy, fate, labels):
    context = "EU rejects German call in New York . " * 4 + "Café"
    section = {"windows_without_answer": policy, "doc_stride": 4}
    config = from_dict(options(Path("x"), section, dataset={"max_seq_length": 32, "long_documents": fate}))
    row = {"question": "what ?", "text": context, "answers": (Answer("Café", context.index("Café")),)}
    encoded = load_examples(config).encoder(tokenizer).encode([row])
    values = encoded.columns["span"]
    assert ((values > 0).sum(), (values == 0).sum() > 0) == (labels[0], labels[1] > 0)
    assert (values == -100).any() == (policy == "ignored")


# --- answers of windows


def every_span(logits, first, end, most):
    """The best span, by comparing all."""
    spans = [
        (float(logits[a, 0] + logits[b, 1]), -(b - a), a, b)
        for a in range(first, end)
        for b in range(a, min(a + most, end))
    ]
    return max(spans, default=(spans_module.LOWEST, 0, 0, 0))


@given(st.integers(0, 2**20), st.integers(1, 12), st.integers(1, 12))
def test_the_best_span_is_the_best_of_all(seed, length, most):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randint(-4, 5, (3, length, 2), generator=draw).float()
    first = torch.randint(0, length, (3,), generator=draw)
    end = first + (torch.rand(3, generator=draw) * (length - first + 1)).long()
    found = best_spans(logits, first, end, most)
    for number in range(3):
        wanted = every_span(logits[number], int(first[number]), int(end[number]), most)
        assert found[number, 0] == logits[number, 0].sum()
        if wanted[0] > spans_module.LOWEST:
            assert found[number, 1] == wanted[0]
            a, b = (int(each) for each in found[number, 2:])
            assert logits[number, a, 0] + logits[number, b, 1] == wanted[0]
            assert b - a == -wanted[1]
        else:
            assert found[number, 1] <= spans_module.LOWEST


@pytest.mark.parametrize(
    ("answer", "wanted", "scores"),
    [
        ("The U.S.", ["us"], (1.0, 1.0)),  # of the script: punctuation, articles and case
        ("an old house", ["house", "the big house"], (0.0, 2 / 3)),
        ("", [], (1.0, 1.0)),
        ("", ["the"], (1.0, 1.0)),  # nothing is left of it
        ("x", [], (0.0, 0.0)),
        ("a a b", ["b b"], (0.0, 2 / 3)),
    ],
)
def test_scores_are_those_of_the_script_of_squad(answer, wanted, scores):
    assert answer_scores(answer, wanted) == pytest.approx(scores)


def test_no_answer_is_predicted_above_the_threshold():
    windows = np.array([[5.0, 2.0, 3, 4], [1.0, 1.5, 2, 2]])
    assert best_window(windows, None) == best_window(windows, 0.0) == 0  # the second window has it least
    assert best_window(windows, -1.5) is None


def test_metrics_of_both_kinds_need_questions_without_answers():
    names = [
        [each.name for each in reported_metrics(from_dict(options(Path("x"), section)))]
        for section in ({}, {"null_threshold": 0.0})
    ]
    assert names[0] == ["eval/loss", "eval/exact_match", "eval/f1"]
    assert {*names[1]} - {*names[0]} == {"eval/has_answer_f1", "eval/no_answer_f1"}


# --- whole runs


def test_a_killed_run_ends_as_the_unbroken_one(killed_run, metrics, file):
    """Trains packed windows, keeps the best checkpoint, and resumes to the last bit."""
    trainer = {"max_steps": 60, "eval_steps": 15, "save_steps": 15, "metric_for_best_model": "eval/f1"}
    whole = killed_run(20, **options(file, trainer=trainer))
    lines = metrics(whole)
    assert lines[-1]["eval/f1"] > lines[0]["eval/f1"] + 0.3
    assert {*lines[-1]} >= {"eval/exact_match", "eval/has_answer_f1", "eval/no_answer_f1"}
    folder = whole / "checkpoints" / "60"
    model = AutoModelForQuestionAnswering.from_pretrained(folder)
    saved = read_weights(folder)
    assert all(torch.equal(saved[name], each) for name, each in model.state_dict().items())
    assert model.config.question_answering == {
        "doc_stride": 4, "max_answer_length": 30, "null_threshold": 0.0,
    }  # fmt: skip
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: question-answering" in card
    assert "AutoModelForQuestionAnswering.from_pretrained" in card


def test_padded_windows_are_trained_and_scored_on_ranks_without_any(make_run, run, metrics, file):
    """The last round of an evaluation may have no window for a rank."""
    trainer = {"max_steps": 2, "eval_steps": 2, "save_steps": 0}
    values = options(file, {}, trainer=trainer, datacollator={"pack_sequences": False})
    answered = [row for row in questions(150, 1) if row["answers"]["text"]]
    path = file.with_name("answered.jsonl")
    path.write_text("".join(f"{json.dumps(row)}\n" for row in answered))
    values["dataset"]["path"] = str(path)
    run_dir = make_run(**values)
    assert run(run_dir) == 0
    last = metrics(run_dir)[-1]
    assert "eval/no_answer_f1" not in last
    config = from_dict(json.loads((run_dir / "resolved.json").read_text()))
    prepared = prepare(config)
    text = EvaluationText(config, prepared)
    found = AnswerMetrics(torch.device("cpu"), text, config.question_answering)
    (first, *_) = EvalStream(prepared, config, prepared.tokenizer, rank=63, world_size=64)
    assert first.num_segments == 0
    empty = Predictions(torch.tensor(0.0), torch.zeros(len(first.labels), 8, 2), first.labels)
    found.add(empty, first)
    assert found.values(World(FP32)) == dict.fromkeys(("eval/loss", "eval/exact_match", "eval/f1"))
