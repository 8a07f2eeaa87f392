"""`init`: a run file that lints clean for every answer, written once, and never over another file."""

import os
import resource
import subprocess
import tempfile
from itertools import islice
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.commands.starter_file import SIZES, StarterInputs, starter_yaml
from neobert.config.document import load_document
from neobert.config.nodes import to_plain_value
from neobert.data.sources.corpus import open_corpus
from neobert.tasks.classification.rows import row_format
from neobert.tasks.classification.section import CLASSIFICATION
from profiles.registry import resolve_run

DEVICES = ("cpu", "gpu")


@pytest.fixture
def text() -> Path:
    path = Path("text.txt")
    path.write_text("A line of text.\n\n" * 1000)
    return path


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("task", ["pretrain", "causal"])
def test_every_file_lints_clean(task, device, size, text, command):
    os.truncate(text, 10**9)  # enough for the steps of every size
    written = command("init", "--text", str(text), "--size", size, "--device", device, "--task", task)
    assert written.code == 0
    assert "neobert-launch train run.yaml" in written.out
    command("lint", "run.yaml", "--strict").passed()
    run = resolve_run(None, ["run.yaml"])
    assert run.config.task == task
    assert run.config.model.hidden_size == SIZES[size].hidden_size  # type: ignore[index]
    assert run.device == ("cpu" if device == "cpu" else "cuda")
    # Only the base decoder trains long enough to repay its compilation.
    assert run.config.trainer.torch_compile == ((task, device, size) == ("causal", "gpu", "base"))


def test_a_write_that_fails_leaves_no_file_in_the_way_of_the_next(text, command):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limit[1]))
    try:
        failed = command("init", "--text", "text.txt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert failed.code
    assert "run.yaml: this path cannot be written: File too large [not-writable]" in failed.err
    assert not Path("run.yaml").exists()
    assert command("init", "--text", "text.txt").code == 0


def test_paths_are_relative_to_the_file(text, command):
    assert command("init", "configs/new/mine.yml", "--text", "text.txt").code == 0
    config = resolve_run(None, ["configs/new/mine.yml"]).config
    assert Path(config.dataset.path or "").resolve() == text.resolve()
    assert Path(config.trainer.output_dir).resolve() == Path("configs/new/runs/mine").resolve()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--text", "text.txt", "taken.yaml"], "does not overwrite"),
        (["--text", "text.txt", "dangling.yaml"], "does not overwrite"),
        (["--text", "missing.txt"], "missing.txt: does not exist"),
        (["--text", "empty.txt"], "empty.txt: is empty"),
        (["--text", "/dev/null"], "/dev/null: is not a regular file"),
        (["--text", "hidden"], "hidden: has no file in a supported format (.txt, .md, .jsonl,"),
        (["--text", "my notes"], "my notes: has no file in a supported format (.txt, .md, .jsonl,"),
        (["--text", "my notes"], "extract its text into a .txt or .jsonl file"),
        (["--text", "my notes/a.rtf"], "my notes/a.rtf: is a formatted document"),
        (["--text", "latin.txt"], "latin.txt:1: is not UTF-8"),
        (["--text", "chat.jsonl"], "write the text to a column of its own"),
        (["--text", "*.rst"], "*.rst: matches no file"),
        (["--text", "text.txt", "run.toml"], "init writes YAML"),
        (["--text", "text.txt", "--dataset", "x/y"], "both given"),
        ([], "neither --text nor --dataset"),
    ],
)
def test_a_refusal_writes_nothing(arguments, problem, text, command):
    Path("taken.yaml").write_text("profile: cpu\n")
    Path("dangling.yaml").symlink_to("nowhere.yaml")
    Path("empty.txt").touch()
    Path("hidden", ".git").mkdir(parents=True)
    Path("hidden", ".git", "packed").write_text("not read")
    Path("hidden", ".notes.txt").write_text("not read")
    Path("latin.txt").write_bytes(b"caf\xe9")
    Path("chat.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}')
    Path("my notes").mkdir()
    Path("my notes", "a.rtf").write_text("# A title")
    before = sorted(os.listdir())
    command("init", *arguments).refused(2, problem)
    assert sorted(os.listdir()) == before
    assert Path("taken.yaml").read_text() == "profile: cpu\n"


@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        ("a\nb\n" * 99, True),
        ("a\n\nb", False),
        ("a\r\n \t\r\nb", False),
        ("a\r \rb", False),
        ("a\rb", True),
        ("a", True),
    ],
)
def test_a_text_without_blank_lines_is_named(content, is_one, text, command):
    Path("my text.txt").write_bytes(content.encode())
    answer = command("init", "--text", "my text.txt", "--device", "cpu", "--output-format", "json")
    assert answer.json["next"][0] == "neobert-launch lint run.yaml"
    assert ("so it is one document" in answer.err) == is_one
    assert ("fold -s -w 2000 'my text.txt' | awk '{print; " in answer.err) == is_one


@pytest.mark.child
def test_a_folder_of_books_is_named_and_can_be_evaluated(command):
    """Each book is one document: a share of them by hash may be none, and the run would not start."""
    Path("books").mkdir()
    for name in ("a", "b"):
        Path("books", f"{name}.txt").write_text(f"a line of book {name}\n" * 8000, encoding="utf-8")
    answer = command("init", "--text", "books", "--device", "cpu").passed()
    assert "books/a.txt has no blank line, so it is one document" in answer.err
    assert yaml.safe_load(Path("run.yaml").read_text(encoding="utf-8"))["dataset"]["eval_samples"] == 1
    command("lint", "run.yaml", "--strict").passed()
    awk = answer.err.split("`")[1]
    subprocess.run(["bash", "-c", awk], check=True)
    documents = Path("documents.txt").read_text(encoding="utf-8").split("\n\n")
    assert len(documents) > 50
    assert max(map(len, documents)) < 2200


@pytest.mark.parametrize(
    ("num_bytes", "task", "max_steps", "comment"),
    [
        (20_000, (), 20, "about 69 passes over this text"),
        (4_000_000, (), 1160, "about 20 passes of 58 steps over this text"),
        (4_000_000, ("--task", "causal"), 232, "about 4 passes of 58 steps over this text"),
        (700_000_000, (), 5000, "one pass over this text takes about 10,000 steps"),
    ],
)
def test_the_steps_are_bounded_by_the_text(num_bytes, task, max_steps, comment, text, command):
    text.write_text("A line of text.\n\n" * 1000)
    os.truncate(text, num_bytes)
    assert command("init", "--text", "text.txt", "--size", "small", "--device", "gpu", *task).code == 0
    (line,) = (line for line in Path("run.yaml").read_text().splitlines() if "max_steps" in line)
    assert line.split("#")[0].split() == ["max_steps:", str(max_steps)]
    assert line.endswith(comment)


@pytest.mark.parametrize("task", [(), ("--task", "causal")])
def test_the_column_of_the_text_is_named_or_given(task, command):
    Path("reviews.csv").write_text("id,body,label\n" + "1,so good,a\n2,so bad,b\n" * 20)
    answer = command("init", "--text", "reviews.csv", "--device", "cpu", *task)
    hint = "set --dataset.text_column to one of the columns: 'id', 'body', 'label'"
    hint += "" if task else "; or, to train on its labels, add --task classification"
    assert f"none of the columns is named text, sentence, content [unusable-path]\n  = hint: {hint}\n" in (
        answer.err
    )
    assert not Path("run.yaml").exists()
    named = ("init", "--text", "reviews.csv", "--device", "cpu", *task, "--dataset.text_column", "body")
    assert command(*named).code == 0
    assert resolve_run(None, ["run.yaml"]).config.dataset.text_column == "body"
    other = command("init", "b.yaml", *named[1:], "--classification.label_column", "label")
    other.refused(2, f"task {task[1] if task else 'pretrain'} does not read classification.label_column")


def test_a_table_without_a_header_has_no_hint_at_a_key_that_init_refuses(command):
    Path("reviews.csv").write_text("1,so good\n2,so bad\n")
    answer = command("init", "--text", "reviews.csv", "--device", "cpu")
    assert "= hint: add a header line, as the first line seems to be a row; or set --dataset." in answer.err


def test_files_that_are_not_read_are_warnings(text, command):
    Path("reviews.csv").write_text("id,body\n1,good\n")
    answer = command("init", "b.yaml", "--text", ".", "--device", "cpu")
    assert "not read: 1 x .csv (reviews.csv: none of the columns is named text" in answer.err


@pytest.mark.parametrize("task", [(), ("--task", "classification")])
def test_files_that_their_names_make_evaluation_text_are_named(task, command):
    """Of a folder of notes as of a table; then no row is held out, and test is for the end."""
    rows = "text,label\n" + "".join(f"the note {number},{number % 2}\n" for number in range(120))
    Path("data").mkdir()
    for name in ("notes", "dev", "test"):
        Path("data", f"{name}.csv").write_text(rows)
    Path("data/original.txt").write_text("a line of text\n" * 10_000)
    answer = command("init", "--text", "data", *task, "--device", "cpu")
    assert ("so it is one document" in answer.err) == (not task), "a table of labels is read alone"
    expected = "files used for evaluation, because of their names: dev.csv\nfiles not read, because of their "
    expected += "names: test.csv (1 x test split)\n"
    assert expected in answer.out
    assert "validation_split: 0" not in Path("run.yaml").read_text()
    Path("data/dev.csv").unlink()
    Path("data/test.csv").unlink()
    assert "by name" not in command("init", "other.yaml", "--text", "data", *task, "--device", "cpu").out
    assert "validation_split: 0" in Path("other.yaml").read_text()


NAME = st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="/")


@given(st.text(NAME, min_size=1, max_size=20))
def test_any_name_is_read_back_as_it_was(name):
    source = starter_yaml(StarterInputs(name, "", "tiny", "cpu", None), Path(f"{name}.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.yaml")
        file.write_text(source, encoding="utf-8")
        values = to_plain_value(load_document(file).root)
    assert values["dataset"]["path"] == name
    assert values["trainer"]["output_dir"] == os.path.normpath(f"runs/{name}")


@pytest.mark.parametrize("has_splits", [False, True])
def test_a_saved_dataset_of_the_library_is_read_as_any_table(has_splits, tmp_path, monkeypatch, command):
    """The size of its text was 0 bytes, by which the steps of a pass were divided."""
    import datasets

    rows = datasets.Dataset.from_dict(
        {
            "body": [f"document number {number} of a few words" for number in range(40)],
            "mood": ["bad", "good"] * 20,
        }
    )
    train = "saved/train" if has_splits else "saved"
    (rows.train_test_split(0.5, seed=0) if has_splits else rows).save_to_disk("saved")
    of_text = command("init", "text.yaml", "--text", "saved", "--device", "cpu").passed()
    assert ("splits used for evaluation, because of their names: test\n" in of_text.out) is has_splits
    init = ("--text", "saved", "--device", "cpu", "--task")
    classes = command("init", "classes.yaml", *init, "classification")
    assert "text: column 'body'\nlabel: column 'mood', 2 classes: bad, good\n" in classes.out
    assert ("validation_split" in Path("classes.yaml").read_text()) is not has_splits
    for file in ("text.yaml", "classes.yaml"):
        assert command("lint", file).code == 0
    next(Path(train).glob("*.arrow")).unlink()
    damaged = command("init", "again.yaml", *init, "classification")
    assert f"error: {train}: is not a complete dataset of save_to_disk" in damaged.err


def test_classes_of_a_saved_dataset_have_their_names(text, command):
    import datasets

    classes = datasets.ClassLabel(names=["unsure", "yes", "no"])
    features = datasets.Features(text=datasets.Value("string"), label=classes)
    rows = {"text": [f"document number {number}" for number in range(40)], "label": [2, 1] * 20}
    datasets.Dataset.from_dict(rows, features).save_to_disk("saved")
    init = ("--text", "saved", "--device", "cpu", "--task", "classification")
    assert "label: column 'label', 3 classes: unsure, yes, no\n" in command("init", *init).out
    config = resolve_run(None, ["run.yaml"]).config
    assert CLASSIFICATION.read_section(config).label_names == ("unsure", "yes", "no")
    read = [*islice(open_corpus(config.dataset, row_format(config)).train.open(), 9)]
    assert [row["label"] for row in read] == [2 - int(row["text"].split()[-1]) % 2 for row in read]


@pytest.mark.parametrize(
    ("splits", "problem"),
    [
        ("{}", "dataset_dict.json has no list of splits"),
        ('{"splits": []}', "it has no splits"),
        ('{"splits": ["train"]}', "split train is missing"),
    ],
)
def test_damaged_splits_of_a_saved_dataset_are_named(tmp_path, command, splits, problem):
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "dataset_dict.json").write_text(splits)
    damaged = command("init", tmp_path / "run.yaml", "--text", saved, "--task", "classification")
    assert f"error: {saved}: is not a complete dataset of save_to_disk: {problem}" in damaged.err


def test_conversations_need_a_model_that_predicts_the_next_token(text, command):
    """The file that was written described NeoBERT, and failed lint."""
    table = text.with_suffix(".jsonl")
    table.write_text('{"prompt": "1?", "completion": "2"}\n' * 40)
    answer = command("init", "--task", "sft", "--text", str(table))
    assert answer.err.startswith("error: task sft fine-tunes a causal model, but --from is not given")
    assert not Path("run.yaml").exists()


@pytest.mark.parametrize("option", ["--output", "-o"])
def test_the_file_to_write_needs_no_option(option, command):
    """The most similar name is that of the output format."""
    command("init", option, "run.yaml", "--dataset", "builtin:python-docs").refused(
        2, "without an option: `init FILE`"
    )
