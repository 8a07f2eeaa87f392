"""`predict` against the pipelines of transformers, and its files."""

import csv
import json
import random
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import torch
import transformers

from neobert.encoding import shards as shards_module
from neobert.errors import ProjectError
from neobert.export.folder import read_tokenizer_files, write_hf_folder
from neobert.model import (
    NeoBERTConfig,
    NeoBERTForSequenceClassification,
    NeoBERTForTokenClassification,
    NeoBERTLMHead,
)
from neobert.prediction import kinds
from neobert.prediction.class_scores import class_scores
from neobert.prediction.job import run
from neobert.prediction.request import Request
from neobert.tasks.classification.prediction import ClassScorer
from tests.export.conftest import _one_thread_one_seed, tokenizer_dir

__all__ = ["_one_thread_one_seed", "tokenizer_dir"]

WORDS = ["the", "model", "reads", "text", "a", "b", "c", "unknown-word"]
LABELS = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
SCORE = {"num_labels": 1, "problem_type": "regression"}
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "pad_token_id": 0,
}  # fmt: skip
NEOBERT = {
    "attn_backend": "sdpa",
    "max_position_embeddings": 32,
    "embedding_init_range": 1.0,
    "pooling": "avg",
}
NEOBERT_WITH = {"Sequence": NeoBERTForSequenceClassification, "Token": NeoBERTForTokenClassification}
FAMILIES = {
    "NeoBERT": lambda head, more: NEOBERT_WITH[head](NeoBERTConfig(**SIZES, **NEOBERT, **more)),
    "BERT": lambda head, more: getattr(transformers, f"BertFor{head}Classification")(
        transformers.BertConfig(**SIZES, max_position_embeddings=32, initializer_range=0.3, **more)
    ),
    "DeBERTa": lambda head, more: getattr(transformers, f"DebertaV2For{head}Classification")(
        transformers.DebertaV2Config(**SIZES, max_position_embeddings=32, initializer_range=0.1, **more)
    ),
    "RoBERTa": lambda head, more: getattr(transformers, f"RobertaFor{head}Classification")(
        transformers.RobertaConfig(**SIZES, max_position_embeddings=33, initializer_range=0.3, **more)
    ),
    "ModernBERT": lambda head, more: getattr(transformers, f"ModernBertFor{head}Classification")(
        transformers.ModernBertConfig(
            **SIZES, max_position_embeddings=32, initializer_range=0.3, cls_token_id=2, sep_token_id=3,
            bos_token_id=2, eos_token_id=3, **more,
        )
    ),
}  # fmt: skip
TYPED = ("BERT", "DeBERTa")
"""Families that read the second text of a pair with a type of its own; packed and padded."""


@pytest.fixture
def saved(tmp_path, tokenizer_dir):
    def save(model):
        if isinstance(getattr(model, "classifier", None), torch.nn.Linear):
            torch.nn.init.normal_(model.classifier.weight)
        write_hf_folder(model, read_tokenizer_files(tokenizer_dir), tmp_path / "model")
        return tmp_path / "model"

    return save


def sentences(number=40, longest=45):
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(number)]


def pipeline(task, folder, **more):
    return transformers.pipeline(task, str(folder), device="cpu", trust_remote_code=True, **more)


def predict(folder, rows, tmp_path, name="out.jsonl", **more):
    """Write rows as JSON lines, and return the rows of the output."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = Request(str(folder), str(source), str(tmp_path / name), **more)
    run(request)
    return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]


@pytest.mark.parametrize("family", FAMILIES)
def test_probabilities_of_texts_are_those_of_the_pipeline(family, saved, tmp_path):
    folder = saved(FAMILIES[family]("Sequence", LABELS))
    texts = sentences()
    found = predict(
        folder, [{"id": n, "text": text} for n, text in enumerate(texts)], tmp_path, every_class=True
    )
    wanted = pipeline("text-classification", folder)(texts, top_k=None, truncation=True, max_length=32)
    for number, (row, scores) in enumerate(zip(found, wanted, strict=True)):
        assert row["id"] == number
        assert row["prediction"] == scores[0]["label"]
        for each in scores:
            assert row[f"probability_{each['label']}"] == pytest.approx(each["score"], abs=1e-6)
    assert len({round(row["probability"], 3) for row in found}) > 9


def with_types(folder):
    """Have the tokenizer of a folder return token types."""
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_of_pairs_are_those_of_the_pipeline(family, saved, tmp_path):
    has_types = family in TYPED
    folder = saved(FAMILIES[family]("Sequence", SCORE | {"type_vocab_size": 2} if has_types else SCORE))
    folder = with_types(folder) if has_types else folder
    pairs = list(zip(sentences(), sentences(longest=9)[::-1], strict=True))
    rows = [{"text": first, "other": second} for first, second in pairs]
    found = predict(folder, rows, tmp_path, pair_column="other")
    inputs = [{"text": first, "text_pair": second} for first, second in pairs]
    requested = {"truncation": True, "max_length": 32, "function_to_apply": "none"}
    wanted = pipeline("text-classification", folder)(inputs, **requested)
    largest = max(abs(each["score"]) for each in wanted)
    for row, score in zip(found, wanted, strict=True):
        assert row["prediction"] == pytest.approx(score["score"], abs=1e-6 * max(1, largest))


@pytest.mark.parametrize("family", TYPED)
def test_a_separator_in_a_text_of_a_pair_is_plain_text(family, saved, tmp_path):
    folder = with_types(saved(FAMILIES[family]("Sequence", SCORE | {"type_vocab_size": 2})))
    pairs = [("the model [SEP] reads", "a b"), ("[SEP]", "text"), ("the", "model [SEP] a")]
    rows = [{"text": first, "other": second} for first, second in pairs]
    found = predict(folder, rows, tmp_path, pair_column="other")
    inputs = [{"text": first, "text_pair": second} for first, second in pairs]
    wanted = pipeline("text-classification", folder)(
        inputs, function_to_apply="none", split_special_tokens=True
    )
    largest = max(abs(each["score"]) for each in wanted)
    for row, score in zip(found, wanted, strict=True):
        assert row["prediction"] == pytest.approx(score["score"], abs=1e-6 * max(1, largest))


def test_a_single_text_with_a_separator_has_one_token_type(saved, tmp_path):
    folder = with_types(saved(FAMILIES["BERT"]("Sequence", LABELS)))
    text = "the model [SEP] reads text"
    (row,) = predict(folder, [{"text": text}], tmp_path)
    (wanted,) = pipeline("text-classification", folder)([text])
    assert row["probability"] == pytest.approx(wanted["score"], abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_of_words_are_those_of_the_pipeline(family, saved, tmp_path):
    folder = saved(FAMILIES[family]("Token", LABELS))
    texts = [text.replace("-", "") for text in sentences(longest=20)]
    found = predict(folder, [{"tokens": text.split()} for text in texts], tmp_path)
    wanted = pipeline("token-classification", folder, ignore_labels=[])(texts)
    for text, row, tokens in zip(texts, found, wanted, strict=True):
        first = {each["start"]: each for each in tokens}
        starts = [sum(len(word) + 1 for word in text.split()[:n]) for n in range(len(text.split()))]
        assert row["prediction"] == [first[start]["entity"] for start in starts]
        assert row["probability"] == pytest.approx([first[start]["score"] for start in starts], abs=1e-6)


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")  # as the card says
def test_the_card_of_a_byte_level_tagger_labels_words_as_predict_does(tmp_path):
    """Its tokens of a word depend on the space before the word."""
    tokens = bytes_to_tokens(WORDS)
    torch.manual_seed(0)
    more = {"cls_token_id": 0, "sep_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    sizes = {**SIZES, "vocab_size": len(tokens), **more}
    model = transformers.ModernBertForTokenClassification(
        transformers.ModernBertConfig(**sizes, max_position_embeddings=64, initializer_range=0.3, **LABELS)
    )
    tokens.save_pretrained(tmp_path / "tokenizer")
    write_hf_folder(model, read_tokenizer_files(tmp_path / "tokenizer"), tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    code = card.split("```python")[1].split("```")[0].replace("PATH_OR_NAME", str(tmp_path / "model"))
    text, scope = "the model reads text a b c", {}
    exec(code.replace('tag("one text"', f'found = tag("{text}"'), scope)
    (row,) = predict(tmp_path / "model", [{"tokens": text.split()}], tmp_path)
    spoken = [
        label for each in scope["found"] for label in [each["entity_group"]] * len(each["word"].split())
    ]
    assert row["prediction"] == spoken
    assert len({*spoken}) > 1


def bytes_to_tokens(words):
    """Train a byte-level tokenizer whose words begin with their space."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["[PAD]"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator([" ".join(words)] * 9, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]")


def test_each_word_of_a_long_text_has_a_label(saved, tmp_path):
    folder = saved(FAMILIES["NeoBERT"]("Token", LABELS))
    words = random.Random(1).choices(WORDS, k=200)
    (row,) = predict(folder, [{"text": " ".join(words)}], tmp_path)
    assert len(row["prediction"]) == 200
    assert set(row["prediction"]) <= {"bad", "fair", "good"}


def test_masked_words_are_those_of_the_pipeline(saved, tmp_path):
    folder = saved(
        NeoBERTLMHead(NeoBERTConfig(**{**SIZES, "vocab_size": 35}, **NEOBERT, decoder_init_range=0.3))
    )
    texts = [f"{text} [MASK]" for text in sentences(longest=12)]
    found = predict(folder, [{"text": text} for text in texts], tmp_path)
    wanted = pipeline("fill-mask", folder)(texts, top_k=1)
    for row, (best,) in zip(found, wanted, strict=True):
        assert row["prediction"] == best["token_str"]
        assert row["probability"] == pytest.approx(best["score"], abs=1e-6)
    with pytest.raises(ProjectError, match="a text has 0 masks, expected one: 'the'"):
        predict(folder, [{"text": "the"}], tmp_path, "other.jsonl")


def test_a_folder_that_lacks_its_head_is_refused(saved, tmp_path):
    folder = saved(transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(settings | {"architectures": ["BertForSequenceClassification"]})
    )
    with pytest.raises(ProjectError, match=r"lacks weights of the model: .*classifier\.weight"):
        predict(folder, [{"text": "the"}], tmp_path)


@pytest.fixture
def classifier(saved):
    return saved(FAMILIES["NeoBERT"]("Sequence", LABELS))


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_every_format_keeps_the_columns(suffix, classifier, tmp_path):
    rows = [{"id": str(n), "text": text, "note": 'a "quote", é'} for n, text in enumerate(sentences(9))]
    source, output = tmp_path / f"in.{suffix}", tmp_path / f"out.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), source)
    elif suffix == "jsonl":
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        style = (
            {"delimiter": ","}
            if suffix == "csv"
            else {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
        )
        with source.open("w", newline="") as file:
            csv.writer(file, **style).writerows([rows[0], *(row.values() for row in rows)])
    run(Request(str(classifier), str(source), str(output)))
    if suffix == "parquet":
        found = pq.read_table(output).to_pylist()
    elif suffix == "jsonl":
        found = [json.loads(line) for line in output.read_text().splitlines()]
    else:
        with output.open(newline="") as file:
            found = list(csv.DictReader(file, **style))
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    assert {row["prediction"] for row in found} <= {"bad", "fair", "good"}
    assert all(1 / 3 <= float(row["probability"]) <= 1 for row in found)


@pytest.mark.parametrize(("name", "separator"), [("out.csv", ";"), ("out.tsv", "\t")])
def test_a_table_is_separated_as_the_input_of_its_format(name, separator, classifier, tmp_path):
    (tmp_path / "in.csv").write_text("id;text\n1;the model, a text\n")
    run(Request(str(classifier), str(tmp_path / "in.csv"), str(tmp_path / name)))
    header, row = (tmp_path / name).read_text().splitlines()
    assert header == separator.join(("id", "text", "prediction", "probability"))
    assert row.startswith(separator.join(("1", "the model, a text", "")))


def test_lines_of_a_text_file_are_rows_also_empty_ones(classifier, tmp_path):
    (tmp_path / "in.txt").write_text("the model\n\nreads text")
    report = run(Request(str(classifier), str(tmp_path / "in.txt"), str(tmp_path / "out.csv")))
    assert (report["texts"], report["empty"]) == (3, 1)
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["text"] for row in csv.DictReader(file)] == ["the model", "", "reads text"]


def test_a_stopped_job_continues(classifier, tmp_path, monkeypatch):
    rows = [{"text": text} for text in sentences(20)]
    whole = predict(classifier, rows, tmp_path, "whole.jsonl", rows_per_shard=4)
    written, write = [], shards_module.Shards.write

    def stop(shards, number, values, counts):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(number)
        write(shards, number, values, counts)

    with monkeypatch.context() as patch:
        patch.setattr(shards_module.Shards, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            predict(classifier, rows, tmp_path, rows_per_shard=4)
    again = []
    monkeypatch.setattr(
        shards_module.Shards,
        "write",
        lambda shards, number, *rest: (again.append(number), write(shards, number, *rest)),
    )
    assert predict(classifier, rows, tmp_path, rows_per_shard=4) == whole
    assert (written, again) == ([0, 1, 2], [3, 4])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": "out.xls"}, "does not end in .csv, .tsv, .jsonl or .parquet"),
        ({"column": "other"}, "there is no column 'other'"),
        ({"pair_column": "other"}, "there is no column 'other'"),
        ({"max_length": 99}, "max_length 99 exceeds the 32 positions"),
        ({"texts": "absent.csv"}, "does not exist"),
        ({"texts": "."}, "is a folder"),
        (
            {"settings": {"num_attention_heads": 3}},
            "config.json is not a NeoBERT config: num_attention_heads",
        ),
        ({"settings": {"id2label": ["a", "b"]}}, "config.json is not a NeoBERT config: AttributeError"),
        (
            {"settings": {"id2label": {"0": "good", "1": "bad", "2": "good"}}},
            "config.json: id2label has 2 classes named 'good'",
        ),
        (
            {"settings": {"id2label": {"-1": "good", "1": "bad", "2": "fair"}}},
            "config.json: id2label names the classes -1, 1, 2, expected 0 to 2",
        ),
        ({"settings": {"model_type": "other"}}, "contains custom code"),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence(changes, message, classifier, tmp_path, capsys):
    (tmp_path / "in.csv").write_text("text,label\nthe model,1\n")
    config, changes = classifier / "config.json", dict(changes)
    config.write_text(json.dumps(json.loads(config.read_text()) | changes.pop("settings", {})))
    request = Request(str(classifier), str(tmp_path / "in.csv"), str(tmp_path / "out.csv"))
    with pytest.raises(ProjectError, match=message):
        run(Request(**{**asdict(request), **changes}))
    assert "run the custom code?" not in capsys.readouterr().out


@pytest.mark.parametrize("replace", [Path.mkdir, lambda path: path.symlink_to("gone")])
def test_weights_that_cannot_be_read_are_one_sentence(replace, classifier, tmp_path):
    (tmp_path / "in.csv").write_text("text,label\nthe model,1\n")
    weights = classifier / "model.safetensors"
    weights.unlink()
    replace(weights)
    with pytest.raises(ProjectError, match=r"cannot be read: .*model\.safetensors"):
        run(Request(str(classifier), str(tmp_path / "in.csv"), str(tmp_path / "out.csv")))


def test_columns_of_the_input_are_not_replaced(classifier, tmp_path):
    row = {"text": "the", "label": None, "prediction": 1}
    (found,) = predict(classifier, [row], tmp_path)
    assert row | found == found
    assert {*found} - {*row} == {"predicted_prediction", "probability"}
    with pytest.raises(ProjectError, match="has a column 'predicted_prediction', which the output would add"):
        predict(classifier, [{**row, "predicted_prediction": 1}], tmp_path, "b.jsonl")


def checkpoint_of_a_run(run_dir, model, config):
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "resolved.json").write_text(json.dumps(config))
    return Path(model).rename(run_dir / "checkpoints" / "10")


def test_columns_are_those_of_the_run(classifier, tmp_path):
    """A checkpoint of a run reads the columns that the run read."""
    config = {
        "dataset": {"text_column": "question"},
        "classification": {"pair_column": "answer"},
        "trainer": {"ema_decay": None},  # a key of an older release
    }
    folder = checkpoint_of_a_run(tmp_path / "run", classifier, config)
    rows = [{"question": "the", "text": "model", "answer": "reads"}]
    found = predict(folder, rows, tmp_path)
    requested = predict(folder, rows, tmp_path, "b.jsonl", column="question", pair_column="answer")
    other = predict(folder, rows, tmp_path, "c.jsonl", column="text")
    assert found == requested != other


def test_labelled_rows_are_scored_by_class(classifier, tmp_path):
    """A row whose label the model does not know is not counted."""
    names = ["bad", "fair", "good"]
    section = {"label_column": "verdict", "label_names": names}
    config = {"task": "classification", "classification": section}
    folder = checkpoint_of_a_run(tmp_path / "run", classifier, config)
    rows = predict(folder, [{"text": text} for text in sentences(30)], tmp_path)
    labelled = [{"text": row["text"], "verdict": names[at % 3]} for at, row in enumerate(rows)]
    source = tmp_path / "labelled.jsonl"
    lines = [*labelled, {"text": "a", "verdict": "odd"}, {"text": "b", "verdict": None}]
    source.write_text("".join(json.dumps(row) + "\n" for row in lines))
    found = run(Request(str(folder), str(source), str(tmp_path / "labelled.csv")))
    right = [row["prediction"] == each["verdict"] for row, each in zip(rows, labelled, strict=True)]
    assert found["labelled"] == 30
    assert found["accuracy"] == pytest.approx(sum(right) / 30, abs=1e-4)
    assert [found["classes"][name]["recall"] for name in names] == [sum(right[at::3]) / 10 for at in range(3)]
    assert found["unread_labels"]["rows"] == 1
    source.write_text(json.dumps({"text": "a", "verdict": "odd"}))
    assert "labelled" not in run(Request(str(folder), str(source), str(tmp_path / "unknown.csv")))


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_the_command_names_the_columns_of_the_run_and_labels_that_are_no_class(classifier, tmp_path):
    folder = tmp_path / "run" / "checkpoints" / "10"
    folder.parent.mkdir(parents=True)
    Path(classifier).rename(folder)
    section = {"label_column": "verdict", "label_names": ["bad", "fair", "good"]}
    config = {"task": "classification", "classification": section, "dataset": {"text_column": "review"}}
    (tmp_path / "run" / "resolved.json").write_text(json.dumps(config))
    source, command = tmp_path / "new.csv", [sys.executable, "-P", "-m", "launcher", "predict", folder]
    source.write_text("review,verdict\nthe model,Good\na text,bad\n,\n")
    requested = {"capture_output": True, "text": True}
    done = subprocess.run([*command, source, "-o", tmp_path / "out.csv"], **requested, check=True)
    assert (
        f"1 of 3 rows not scored: {source}:2: label 'Good' is unknown (classes: bad, fair, good)\n"
        in done.stderr
    )
    assert "unread" not in done.stdout
    source.write_text("comment,verdict\nthe model,good\n")
    refused = subprocess.run([*command, source, "-o", tmp_path / "out.csv"], **requested, check=False)
    assert f"{source}:2: none of the columns is named review, text, sentence, content" in refused.stderr


def test_scores_of_classes():
    """Of a: 2 of 3 found, 2 of 4 right. Nothing is predicted as c, and no text is of d."""
    pairs = [("a", "a"), ("a", "a"), ("a", "b"), ("b", "a"), ("b", "b"), ("c", "a"), ("c", "d")]
    found = class_scores(pairs, ["a", "b", "c", "d"])
    assert (found["labelled"], found["accuracy"]) == (7, 0.4286)
    scores = {
        name: (each["precision"], each["recall"], each["f1"]) for name, each in found["classes"].items()
    }
    assert scores == {"a": (0.5, 0.6667, 0.5714), "b": (0.5, 0.5, 0.5), "c": (0, 0, 0), "d": (0, 0, 0)}
    assert found["classes"]["c"]["predicted_as"] == {"a": 1, "d": 1}


def test_rows_without_a_text_are_not_scored():
    scorer = ClassScorer(["a", "b"])
    for item in (("a text",), ("",), (" ",), ("", "")):
        scorer.add(item, 0, {"prediction": "b"}, "")
    scorer.add(("", "one text of a pair"), 1, {"prediction": "b"}, "")
    assert (scorer.report()["labelled"], scorer.report()["accuracy"]) == (2, 0.5)


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_the_command_reads_standard_input_one_text_and_a_saved_dataset(classifier, tmp_path):
    command = [sys.executable, "-P", "-m", "launcher"]
    requested = {"capture_output": True, "text": True, "check": True}
    lines = subprocess.run(
        [*command, "predict", classifier, "-"], input="the model\nreads text\n", **requested
    )
    rows = [json.loads(line) for line in lines.stdout.splitlines()]
    assert [row["text"] for row in rows] == ["the model", "reads text"]
    features = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(names=["no", "yes"])
    )
    table = datasets.Dataset.from_dict({"text": ["the model", "reads text"], "label": [1, 0]}, features)
    datasets.DatasetDict(test=table).save_to_disk(tmp_path / "saved")
    datasets.DatasetDict(train=table, test=table).save_to_disk(tmp_path / "several")
    found = subprocess.run([*command, "predict", classifier, tmp_path / "saved"], **requested)
    assert [json.loads(line) for line in found.stdout.splitlines()] == [
        {"text": row["text"], "label": label} | {key: row[key] for key in ("prediction", "probability")}
        for row, label in zip(rows, (1, 0), strict=True)
    ]
    refused = subprocess.run(
        [*command, "predict", classifier, tmp_path / "several"], **requested | {"check": False}
    )
    assert (
        f"is a dataset of 2 splits [unusable-texts]\n  = hint: pass one of them: {tmp_path}" in refused.stderr
    )
    one = subprocess.run([*command, "encode", classifier, "the model reads"], **requested)
    assert len(json.loads(one.stdout)["embedding"]) == SIZES["hidden_size"]


@pytest.mark.parametrize("package", ["causal", "token_classification"])  # without, and with a prediction
def test_a_later_task_with_the_head_of_another_one_leaves_its_models_alone(monkeypatch, tmp_path, package):
    classification = kinds.SPECS["classification"]
    keys = replace(classification.keys, name="length", package=f"neobert.tasks.{package}")
    monkeypatch.setitem(kinds.SPECS, "length", replace(classification, keys=keys))
    config = {"architectures": ["NeoBERTForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert kinds.read_model_task(tmp_path) is classification
