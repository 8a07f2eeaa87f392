"""`init --from` and `train --from`: a run file of few keys for a model and a text, or a refusal."""

import ast
import gzip
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from launcher.commands.learning_rates import rate_from_weights
from neobert.config import ConfigError, to_dict
from neobert.errors import ProjectError
from neobert.families.hf.architecture import CAUSAL
from neobert.families.hf.architectures.table import ARCHITECTURES
from neobert.families.shape import ModelShape
from neobert.runfiles.weights_header import tensor_shapes
from neobert.tasks import table_files
from neobert.tasks.specs import SPECS
from profiles.registry import resolve_run
from tests.launcher.model_folders import SIZES, write_header, write_model

MAX_KEYS = 15
TASKS = {
    "notes": "pretrain",
    "reviews.csv": "classification",
    "small.csv": "classification",
    "tagged.jsonl": "token_classification",
}
REVIEW = ("--dataset.text_column", "review")
REVIEWS = [("a fine film", "positive"), ("dull and far too long", "negative")]


@pytest.fixture(autouse=True)
def _text() -> None:
    Path("notes").mkdir()
    Path("notes", "a.txt").write_text(f"{'A document of some words. ' * 10}\n\n" * 400, encoding="utf-8")
    rows = [f"{number},{text},{label}" for number in range(600) for text, label in REVIEWS]
    Path("reviews.csv").write_text("\n".join(["id,review,label", *rows]), encoding="utf-8")
    small = [f"{text} {number},{label}" for number in range(300) for text, label in REVIEWS]
    Path("small.csv").write_text("\n".join(["review,sentiment", *small]), encoding="utf-8")
    tagged = {"tokens": ["Anna", "is", "in", "Paris"], "ner_tags": ["B-PER", "O", "O", "B-LOC"]}
    Path("tagged.jsonl").write_text(f"{json.dumps(tagged)}\n" * 500, encoding="utf-8")


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


def without(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    name, *rest = path
    if rest:
        return tree | {name: without(tree[name], tuple(rest))}
    return {key: value for key, value in tree.items() if key != name}


@pytest.mark.parametrize(
    ("kind", "text", "device"),
    [
        ("bert", "notes", "cpu"),
        ("bert", "reviews.csv", "gpu"),
        ("bert", "small.csv", "cpu"),
        ("bert", "small.csv", "gpu"),
        ("bert", "tagged.jsonl", "cpu"),
        ("modernbert", "notes", "gpu"),
        ("modernbert", "reviews.csv", "cpu"),
        ("modernbert", "small.csv", "cpu"),
        ("modernbert", "small.csv", "gpu"),
        ("modernbert", "tagged.jsonl", "gpu"),
    ],
)
def test_a_file_lints_clean_and_needs_each_of_its_keys(kind, text, device, command):
    write_model(Path("model"), kind)
    task = TASKS[text]
    command("init", "--from", "model", "--task", task, "--text", text, "--device", device).passed()
    command("lint", "run.yaml", "--strict").passed()
    config = resolve_run(None, ["run.yaml"]).config
    assert (config.task, config.model.type, config.tokenizer.path) == (task, "hf", "model")
    assert config.dataset.max_seq_length <= SIZES["max_position_embeddings"]
    assert config.datacollator.pack_sequences == (kind == "modernbert" or device == "cpu")
    if text != "notes":
        assert config.trainer.metric_for_best_model is not None
        assert config.trainer.save_steps % config.trainer.eval_steps == 0
        assert config.trainer.max_steps >= 2 * config.trainer.eval_steps

    content = Path("run.yaml").read_text(encoding="utf-8")
    assert " 0.0% " not in content, content
    tree = yaml.safe_load(content)
    keys = [*leaves(tree)]
    assert len(keys) <= MAX_KEYS, content
    for path in keys:
        Path("less.yaml").write_text(yaml.safe_dump(without(tree, path)), encoding="utf-8")
        try:
            assert to_dict(resolve_run(None, ["less.yaml"]).config) != to_dict(config), path
        except (ConfigError, ProjectError):
            continue

    first = Path("run.yaml").read_text(encoding="utf-8").partition("\n")[0]
    Path("run.yaml").rename("before.yaml")
    assert command(*shlex.split(first.removeprefix("# neobert-launch"))).code == 0
    assert Path("run.yaml").read_bytes() == Path("before.yaml").read_bytes()


@pytest.mark.parametrize(
    ("texts", "rows", "steps", "passes"),
    [(10, 4, 64, 32), (100, 40, 64, 32), (400, 64, 160, 32), (8000, 64, 357, 3)],
)
def test_few_labels_are_read_more_often(texts, rows, steps, passes, command):
    write_model(Path("model"), "bert")
    table = [f"{text} {number},{label}" for number in range(texts // 2) for text, label in REVIEWS]
    Path("some.csv").write_text("\n".join(["review,sentiment", *table]), encoding="utf-8")
    command(
        "init", "--from", "model", "--task", "classification", "--text", "some.csv", "--device", "gpu"
    ).passed()
    trainer = resolve_run(None, ["run.yaml"]).config.trainer
    assert (trainer.per_device_train_batch_size, trainer.max_steps) == (rows, steps)
    assert f"about {passes} passes" in Path("run.yaml").read_text(encoding="utf-8")


KINDS = sorted({*ARCHITECTURES} - {"bert", "modernbert"})
IS_CAUSAL = {kind: CAUSAL in ARCHITECTURES[kind].heads for kind in KINDS}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (kind, text)
        for kind in KINDS
        for text in ("notes", "reviews.csv")
        if text == "notes" or not IS_CAUSAL[kind]
    ],
)
def test_each_architecture_in_the_table_has_a_run_file(kind, text, command):
    write_model(Path("model"), kind)
    stated = () if text == "notes" else ("--task", TASKS[text])
    command("init", "--from", "model", *stated, "--text", text, "--device", "gpu").passed()
    assert resolve_run(None, ["run.yaml"]).config.task == ("causal" if IS_CAUSAL[kind] else TASKS[text])
    command("lint", "run.yaml", "--strict").passed()


def test_a_wider_model_learns_at_a_lower_rate(command):
    rates = {}
    for width in (64, 512):
        write_model(Path(f"w{width}"), "modernbert", hidden_size=width)
        for task, text in (("pretrain", "notes"), ("classification", "reviews.csv")):
            file = f"{task}-{width}.yaml"
            command("init", file, "--from", f"w{width}", "--task", task, "--text", text, "--device", "cpu")
            rates[task, width] = resolve_run(None, [file]).config.optimizer.lr
    for task in ("pretrain", "classification"):
        assert rates[task, 64] > 3 * rates[task, 512]


@pytest.mark.parametrize(("width", "rate"), [(192, 3e-4), (384, 1e-4), (768, 4e-5), (1024, 3e-5)])
def test_the_rate_for_labels_is_a_published_one(width, rate):
    shape = cast("ModelShape", SimpleNamespace(hidden_size=width))
    assert rate_from_weights(SPECS["classification"], Path(), shape, 2048) == rate


def test_a_model_of_this_program_keeps_its_sizes(command):
    write_model(Path("model"), "neobert", norm_eps=1.25e-5, tie_word_embeddings=True, num_attention_heads=4)
    assert command("init", "--from", "model", "--text", "notes", "--device", "cpu").code == 0
    assert command("lint", "run.yaml", "--strict").code == 0
    config = resolve_run(None, ["run.yaml"]).config
    assert (config.model.type, config.model.norm_eps, config.model.num_attention_heads) == (
        "neobert",
        1.25e-5,
        4,
    )
    assert (config.model.hidden_size, config.model.embedding_multiplier) == (SIZES["hidden_size"], None)
    assert (config.model.pretrained_checkpoint, config.tokenizer.path) == ("model", "model")


def test_paths_are_relative_to_the_file(command):
    write_model(Path("model"))
    assert command("init", "configs/mine.yaml", "--from", "model", "--text", "notes").code == 0
    config = resolve_run(None, ["configs/mine.yaml"]).config
    assert Path(config.model.pretrained_checkpoint or "").resolve() == Path("model").resolve()
    assert Path(str(config.dataset.path)).resolve() == Path("notes").resolve()
    assert Path(config.trainer.output_dir).resolve() == Path("configs/runs/mine").resolve()


def test_labels_without_weights_are_trained_from_random_ones(command):
    answer = command("init", "--task", "classification", "--text", "reviews.csv", "--device", "cpu", "--json")
    assert answer.json["inferred"] == [
        "text: column 'review'",
        "label: column 'label', 2 classes: negative, positive",
    ]
    config = resolve_run(None, ["run.yaml"]).config
    assert (config.model.pretrained_checkpoint, config.tokenizer.path) == (None, None)
    assert config.classification.label_names == ("negative", "positive")


def test_the_column_of_the_label_may_be_named(command):
    rows = [f"some words {number},{number % 3},{'xy'[number % 2]}" for number in range(30)]
    Path("table.csv").write_text("\n".join(["text,rating,Kind of text", *rows]), encoding="utf-8")
    write_model(Path("model"))
    named = ("--classification.label_column", "Kind of text")
    train = ("train", "--from", "model", "--text", "table.csv", "--task", "classification", "--dry-run")
    assert command(*train, *named).code == 0
    config = resolve_run(None, ["model-table-Kindoftext.yaml"]).config
    assert config.classification.label_names == ("x", "y")
    again = command(*train, *named)
    assert "using model-table-Kindoftext.yaml, which this command wrote" in again.err
    assert command(*train).code == 0  # the other labels of the table, in a run of their own
    assert resolve_run(None, ["model-table.yaml"]).config.classification.label_column == "rating"
    assert command(*train, "--adapter.type", "lora").code == 0
    assert resolve_run(None, ["model-table-lora.yaml"]).config.adapter.type == "lora"
    Path("runs/model-table").mkdir(parents=True)
    other = command(*train, "--dataset.text_column", "text")
    assert "another command wrote it" in other.err
    assert "or write another with `neobert-launch init --from model" in other.err
    assert "--device cpu model-table-2.yaml" in other.err
    init = ("init", "same.yaml", *train[1:-1], "--device", "cpu", *named)
    assert command(*init).code == 0
    assert resolve_run(None, ["same.yaml"]).config.classification == config.classification
    command("init", "other.yaml", *train[1:-1], "--trainer.max_steps", "3").refused(
        2, "init accepts only columns, classification.problem and adapter.type as keys, not trainer.max_steps"
    )


def test_an_adapter_gets_its_rate_in_the_file(command):
    write_model(Path("model"), "modernbert", hidden_size=768, num_attention_heads=4)
    run = ("--from", "model", "--task", "classification", "--text", "reviews.csv", "--device", "cpu")
    for name, given in (("all", ()), ("lora", ("--adapter.type", "lora"))):
        assert command("init", f"{name}.yaml", *run, *given).code == 0
    every, lora = (resolve_run(None, [f"{name}.yaml"]).config for name in ("all", "lora"))
    assert (every.adapter.type, every.optimizer.lr) == (None, 4e-5)
    assert (lora.adapter.type, lora.optimizer.lr) == ("lora", 4e-4)


def test_names_of_any_characters_are_written_as_they_are(command):
    names = ["null", "1e3", "a: b", "#x", "'q'", "z\u0085z", "\u2028", "\U0001f600", "[b]", "<<", "*c"]
    rows = [json.dumps({"~ t": f"some words {number}", "@\tl": names[number % 11]}) for number in range(110)]
    Path("odd.jsonl").write_text("\n".join(rows), encoding="utf-8")
    assert command("init", "--task", "classification", "--text", "odd.jsonl").code == 0
    config = resolve_run(None, ["run.yaml"]).config
    assert config.dataset.text_column == "~ t"
    assert config.classification.label_column == "@\tl"
    assert {*config.classification.label_names} == {name.strip() for name in names if name.strip()}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["--from", "mamba"],
            "architecture mamba is not supported",
        ),
        (["--from", "list"], "model_type is"),
        (["--from", "bare"], "bare: the folder has no tokenizer.json"),
        (["--from", "truncated"], "truncated/tokenizer.json is not JSON"),
        (["--from", "no-head"], "lacks weights of the model: cls.*"),
        (["--from", "no-blocks", "--task", "classification"], "lacks weights of the model: encoder.layer.0."),
        (["--from", "own-sizes"], 'config.json: hidden_size is "64", expected a positive integer'),
        (["--from", "own-act"], "model.hidden_act expects one of swiglu, gelu"),
        (["--from", "own-index"], "the index names a file outside its folder: /etc/passwd"),
        (["--from", "quantized"], "has type I8: quantized weights are not read"),
        (["--from", "missing"], "missing: no such folder"),
        (["--from", "notes"], "notes: the folder is not a model folder: it has no config.json"),
        (
            ["--from", "bert", "--task", "classification", "--text", "notes"],
            "has no table in a supported format (.jsonl, .ndjson, .json, .csv, .tsv, .conll, .parquet,",
        ),
        (
            ["--from", "bert", "--task", "token_classification", "--text", "notes"],
            "if each line has a word and its label: cp notes/",
        ),
        (["--from", "bert", "--task", "dpo"], "TRL trains on preferences"),
        (["--from", "bert", "--size", "tiny"], "--size applies only to pretraining from random weights"),
        (["--task", "classification", "--dataset", "a/b"], "reads its columns from local files"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(arguments, problem, command):
    write_model(Path("bert"))
    write_model(Path("mamba"), "mamba")
    write_model(Path("list"))
    Path("list", "config.json").write_text('{"model_type": ["bert"]}', encoding="utf-8")
    write_model(Path("bare"))
    Path("bare", "tokenizer.json").rename(Path("bare", "chat_template.jinja"))
    write_model(Path("truncated"))
    Path("truncated", "tokenizer.json").write_text('{"model": {"vocab', encoding="utf-8")
    _without_weights(Path("no-head"), "cls.")
    _without_weights(Path("no-blocks"), "bert.encoder.")
    write_model(Path("own-sizes"), "neobert", hidden_size="64")
    write_model(Path("own-act"), "neobert", hidden_act="relu")
    write_model(Path("own-index"), "neobert")
    Path("own-index", "model.safetensors").rename("own-index/model.safetensors.index.json")
    Path("own-index/model.safetensors.index.json").write_text('{"weight_map": {"a": "/etc/passwd"}}')
    write_model(Path("quantized"))
    weights = Path("quantized", "model.safetensors")
    weights.write_bytes(weights.read_bytes().replace(b'"F32"', b'"I8" '))
    before = sorted(os.listdir())
    if "--text" not in arguments and "--dataset" not in arguments:
        arguments = [*arguments, "--text", "reviews.csv" if "classification" in arguments else "notes"]
    command("init", *arguments).refused(2, problem, "hint: ")
    assert sorted(os.listdir()) == before


def test_older_files_of_a_tokenizer_have_the_command_that_converts_them(command):
    """As in many repositories: vocab.txt or vocab.json without tokenizer.json."""
    write_model(Path("my old model"))
    Path("my old model", "tokenizer.json").rename(Path("my old model", "vocab.txt"))
    refused = command("init", "--from", "my old model", "--text", "notes").refused(
        2, "the folder has no tokenizer.json"
    )
    program = shlex.split(refused.err.partition("hint: run: ")[2].splitlines()[0])
    assert program[:2] == ["python", "-c"]
    assert ast.unparse(ast.parse(program[2])) == (
        "from transformers import AutoTokenizer\n"
        "AutoTokenizer.from_pretrained('my old model').save_pretrained('my old model')"
    )


def _without_weights(folder: Path, start: str) -> None:
    write_model(folder)
    kept = {name: shape for name, shape in tensor_shapes(folder).items() if not name.startswith(start)}
    write_header(folder / "model.safetensors", kept)


@pytest.mark.child
def test_train_writes_the_file_once_and_trains_it(launch, command):
    write_model(Path("model"))
    train = ("train", "--from", "model", "--text", "notes/", "--trainer.max_steps", "200", "--resume", "auto")
    first = launch(*train, fake="finish")
    assert (first.code, "wrote model-notes.yaml" in first.err) == (0, True), first.err
    written = Path("model-notes.yaml").read_bytes()
    assert Path("runs/model-notes/resolved.json").exists()
    again = launch(*train, fake="finish")
    assert (again.code, "using model-notes.yaml, which this command wrote" in again.err) == (0, True)
    assert "this run is already finished" in again.out
    assert Path("model-notes.yaml").read_bytes() == written

    labelled = ("train", "--model-name", "model", "--text", "reviews.csv", "--task", "classification")
    assert command(*labelled, "--dry-run").code == 0
    assert resolve_run(None, ["model-reviews.yaml"]).config.classification.label_names
    other = ("train", "--from", "model", "--text", "reviews.csv", *REVIEW, "--dry-run")
    assert "replaced an unedited file without a run: model-reviews.yaml" in command(*other).err
    assert resolve_run(None, ["model-reviews.yaml"]).config.task == "pretrain"
    with Path("model-reviews.yaml").open("a", encoding="utf-8") as edited:
        edited.write("# mine\n")
    command(*labelled, "--dry-run").refused(2, "the file exists, and another command wrote it")
    assert Path("model-reviews.yaml").read_text(encoding="utf-8").endswith("# mine\n")


@pytest.mark.parametrize(
    ("weights", "text", "file"),
    [
        ("models/model/", "notes/", "model-notes.yaml"),
        ("models/v1.5", "notes/*.txt", "v1.5-notes.yaml"),
        ("models/model", "tagged.jsonl.gz", "model-tagged.yaml"),
    ],
)
def test_the_file_is_named_after_model_and_text(weights, text, file, command):
    write_model(Path(weights))
    Path("tagged.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": "some words"}).encode()))
    answer = command("train", "--from", weights, "--text", text, "--dry-run")
    assert f"wrote {file}" in answer.err


def test_a_table_with_labels_and_no_task_is_read_as_text_and_says_so(command, monkeypatch):
    write_model(Path("model"))
    reads, read = list[Path](), table_files.read_table
    monkeypatch.setattr(
        table_files, "read_table", lambda file, rows: [reads.append(file), read(file, rows)][1]
    )
    answer = command("train", "--from", "model", "--text", "reviews.csv", *REVIEW, "--dry-run")
    assert (
        "reviews.csv is read as plain text; to train on its labels, add --task classification\n" in answer.err
    )
    assert reads == [Path("reviews.csv")], "once for all tasks"
    assert (
        "is read as plain text" not in command("train", "--from", "model", "--text", "notes", "--dry-run").err
    )
    new = command("init", "new.yaml", "--text", "reviews.csv", *REVIEW, "--device", "cpu", "--json").json
    assert new["inferred"] == [
        "reviews.csv is read as plain text; to train on its labels, add --task classification"
    ]


def test_a_task_that_infers_nothing_stops_no_other_task(command, monkeypatch):
    """A module `inferred` is optional: `init` of a text passes over a task without one."""
    for name in ("contrastive", "sft"):
        keys = replace(SPECS[name].keys, package="neobert.tasks.pretraining")
        monkeypatch.setitem(SPECS, name, replace(SPECS[name], keys=keys))
    command("init", "new.yaml", "--text", "reviews.csv", *REVIEW, "--device", "cpu").passed()
    refused = command("init", "b.yaml", "--text", "reviews.csv", "--task", "contrastive")
    assert refused.code == 2
    message = "init infers no columns for task contrastive: there is no neobert.tasks.pretraining.inferred"
    assert message in refused.err
    assert "write a run file with `task: contrastive` and dataset.path" in refused.err


@pytest.mark.parametrize(
    ("columns", "renamed"),
    [
        (["Question", "response"], "'Question' and 'response' to prompt and completion"),
        (["user", "assistant"], "'user' and 'assistant' to prompt and completion"),
        (["instruction", "input", "response"], "'response' to output"),
        (["instruction", "context", "response"], "'response' and 'context' to output and input"),
        (["Question", "Input", "context", "output"], "'Question' and 'Input' to instruction and input"),
        (
            ["system_prompt", "question", "response"],
            "'question' and 'response' and 'system_prompt' to prompt and completion and system",
        ),
    ],
)
def test_a_table_of_answers_in_other_columns_has_a_note_on_their_task(columns, renamed, command):
    write_model(Path("model"), "llama")
    text = "".join(",".join(row) + "\n" for row in [columns, *[["some words"] * len(columns)] * 9])
    Path("faq.csv").write_text(text, encoding="utf-8")
    init = ("init", "new.yaml", "--from", "model", "--text", "faq.csv", "--device", "cpu", "--json")
    new = command(*init, "--dataset.text_column", columns[0]).json
    way = f"rename columns {renamed}, and add --task sft"
    assert new["inferred"] == [f"faq.csv is read as plain text; to train on its answers, {way}"]


@pytest.mark.parametrize(
    ("number", "line", "expected"),
    [
        (1, "words of a page\n" * 300, {"validation_split": None}),
        (1, "an article of one line " * 20 + "\n", {"validation_split": None}),
        (30, "an article of one line " * 20 + "\n", {"document_per_line": True, "eval_samples": 2}),
        (30, "a text of some words\n\n", {"eval_samples": 2}),
        (200, "a text of some words\n\n", {}),
    ],
)
def test_a_text_of_few_documents_can_be_evaluated(number, line, expected, command):
    write_model(Path("model"))
    Path("few").mkdir()
    Path("few", "a.txt").write_text(line * number, encoding="utf-8")
    assert command("init", "--from", "model", "--text", "few", "--device", "cpu").code == 0
    dataset = yaml.safe_load(Path("run.yaml").read_text(encoding="utf-8"))["dataset"]
    assert {name: dataset[name] for name in dataset if name not in ("path", "max_seq_length")} == expected
    command("lint", "run.yaml", "--strict").passed()


@pytest.mark.parametrize(
    ("device", "repeats", "is_compiled"), [("gpu", 150, True), ("gpu", 1, False), ("cpu", 150, False)]
)
def test_a_run_that_repays_the_compilation_is_compiled(device, repeats, is_compiled, command):
    write_model(
        Path("model"),
        "modernbert",
        num_hidden_layers=22,
        hidden_size=1536,
        num_attention_heads=24,
        intermediate_size=4608,
    )
    document = "A document of some words. " * 60
    Path("notes", "a.txt").write_text(f"{document}\n\n" * 100 * repeats, encoding="utf-8")
    assert command("init", "--from", "model", "--text", "notes", "--device", device).code == 0
    assert resolve_run(None, ["run.yaml"]).config.trainer.torch_compile == is_compiled


@pytest.mark.parametrize("other", [("-p", "cpu-demo"), ("run.yaml",)])
def test_another_run_file_is_refused(other, command):
    command("train", "--from", "model", "--text", "notes", *other).refused(
        2, "a run file or a profile is given too"
    )


@pytest.mark.parametrize(("given", "missing"), [("--from", "--text"), ("--text", "--from")])
def test_weights_and_text_go_together(given, missing, command):
    command("train", given, "notes").refused(2, f"{given} is given without {missing}")


@pytest.mark.child
def test_weights_that_are_new_or_not_used_are_named(launch):
    write_model(Path("model"))
    train = ("train", "--from", "model", "--text", "reviews.csv", "--task", "classification")
    answer = launch(*train, "--unguarded", "the reviews are copies", fake="finish")
    (line,) = [each for each in answer.out.splitlines() if each.startswith("initial weights: ")]
    assert line.endswith(
        "; new, because the checkpoint lacks them: bert.pooler, classifier; not used: 1 (cls.weight)"
    )
