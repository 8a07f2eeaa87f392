import os

import pytest

from neobert.config import ConfigError, load_document, resolve
from neobert.config.document import MAX_BYTES
from neobert.config.nodes import MAX_DEPTH

UNREADABLE = {
    "empty": (b"", "is empty"),
    "null": (b"null\n", "is empty"),
    "list": (b"- 1\n", "contains a list"),
    "scalar": (b"trainer\n", "contains a single value"),
    "binary": (b"\x7fELF\x00\x01", "is a binary file"),
    "utf-16": ("seed: 1".encode("utf-16"), "UTF-16"),
    "latin-1": (b"wandb:\n  name: caf\xe9\n", "not UTF-8: byte 0xe9"),
    "huge": (b"#" * (MAX_BYTES + 1), "larger than 1 MiB"),
    "two documents": (b"seed: 1\n---\nseed: 2\n", "more than one document"),
    "tab": (b"trainer:\n\tmax_steps: 5\n", "cannot start any token"),
    "open bracket": (b"optimizer: {lr: 1\n", "YAML:"),
    "colon in text": (b"wandb:\n  name: a: b\n", "mapping values are not allowed"),
    "tag": (b"seed: !!python/object:os.system 1\n", "tag"),
    "escape character": (b"seed: \x1b[0m\n", "U+001B is not allowed"),
    "unknown anchor": (b"seed: *x\n", "has no anchor"),
    "anchor in itself": (b"variables: &x {a: *x}\n", "has no anchor"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_that_is_no_config_is_refused_with_exit_code_2(case, write):
    content, words = UNREADABLE[case]
    path = write(content)
    with pytest.raises(ConfigError) as caught:
        load_document(path)
    (issue,) = caught.value.issues
    assert issue.code == "CFG011"
    assert issue.file == str(path)
    assert words in issue.message
    assert caught.value.exit_code == 2


def test_a_broken_link_is_named_with_its_target(tmp_path):
    (tmp_path / "link.yaml").symlink_to("moved.yaml")
    with pytest.raises(ConfigError, match=r"is a link to moved\.yaml, which does not exist"):
        load_document(tmp_path / "link.yaml")


TABS = "indent with spaces, not tabs"


@pytest.mark.parametrize(
    ("content", "line", "column", "hint"),
    [
        (b"seed: 1\n---\nseed: 2\n", 2, 1, ""),
        (b"wandb:\n  name: a: b\n", 2, 10, ""),
        ("wandb:\n  näme: caf".encode() + b"\xe9\n", 2, 12, ""),
        ("seed: 1\ntask: ü\x1b\n".encode(), 2, 8, ""),
        (b"trainer:\n\tmax_steps: 5\n", 2, 1, TABS),
        (b"trainer:\n  max_steps: 5\n\tsave_steps: 5\n", 3, 1, TABS),
        (b"trainer:\n  max_steps: 5\n  \tsave_steps: 5\n", 3, 3, TABS),
        (b"seed: 1\n \ttask: mlm\n", 2, 7, TABS),
    ],
)
def test_the_place_of_a_syntax_error_is_named(content, line, column, hint, write):
    with pytest.raises(ConfigError) as caught:
        load_document(write(content))
    (issue,) = caught.value.issues
    assert (issue.line, issue.column) == (line, column)
    assert issue.hint == hint or not hint


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    for path, words in ((tmp_path / "none.yaml", "none.yaml does not exist"), (tmp_path, "is a directory")):
        with pytest.raises(ConfigError, match=words) as caught:
            load_document(path)
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("rnu.yaml", "did you mean {}/run.yaml?"),
        ("run.yml", "did you mean {}/run.yaml?"),
        ("other.yaml", "check the path and the current directory"),
        ("absent/run.yaml", "check the path and the current directory"),
    ],
)
def test_a_misspelt_path_suggests_the_file_next_to_it(path, hint, tmp_path):
    (tmp_path / "run.yaml").touch()
    with pytest.raises(ConfigError) as caught:
        load_document(tmp_path / path)
    assert [issue.hint for issue in caught.value.issues] == [hint.format(tmp_path)]


@pytest.mark.parametrize("name", ["a\0b.yaml", "x" * 5000 + ".yaml"])
def test_a_name_that_no_file_can_have_is_refused(name):
    with pytest.raises(ConfigError) as caught:
        load_document(name)
    assert caught.value.code == "CFG011"


def test_a_named_pipe_is_read_like_a_file(tmp_path):
    read, write = os.pipe()
    os.write(write, b"seed: 4\n")
    os.close(write)
    assert resolve([load_document(f"/dev/fd/{read}")]).config.seed == 4
    os.close(read)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfseed: 7\n",
        b"seed: 7\r\n",
        b"%YAML 1.2\n---\nseed: 7\n...\n",
        b"---\nseed: 7\n",
        b'{"seed": 7}',
        b"seed: 7",
        b"# comment\n\nseed: 7 # another\n",
    ],
)
def test_a_file_may_carry_a_mark_any_line_ending_and_directives(content, resolve_text):
    assert resolve_text(content).config.seed == 7


@pytest.mark.parametrize(
    ("content", "line", "column", "hint"),
    [
        ("seed: 1\noptimizer: {lr: 1\ntrainer:\n", 3, 8, "close the bracket"),
        ("seed: 1\noptimizer: {lr: 1\n\n", 2, 12, "close the bracket"),
        ("seed: 1\noptimizer: {betas: [0.9, 0.98}\n", 2, 30, "close the bracket"),
        ("seed: 1\ntask: 'pretrain", 2, 7, "close the quote"),
        ('seed: 1\ntask: "pretrain\ntrainer:\n  max_steps: 5\n', 2, 7, "close the quote"),
    ],
)
def test_what_is_not_closed_is_shown_where_it_opens_or_must_end(content, line, column, hint, issues_of):
    (issue,) = issues_of(content)
    assert (issue.code, issue.line, issue.column) == ("CFG011", line, column)
    assert issue.hint.startswith(hint)


def test_carriage_returns_do_not_shift_places(issues_of):
    (issue,) = issues_of(b"seed: 1\r\ntrainer:\r\n  max_steps: often\r\n")
    assert (issue.line, issue.column, issue.source_line) == (3, 14, "  max_steps: often")


def test_aliases_are_shared_values_placed_where_they_are_used(resolve_text):
    resolution = resolve_text("dataset: {max_seq_length: &n 128}\nmodel:\n  max_position_embeddings: *n\n")
    assert resolution.config.model.max_position_embeddings == 128
    origin = resolution.origins["model.max_position_embeddings"]
    assert (origin.line, origin.column) == (3, 28)


def test_an_alias_bomb_is_refused_before_it_unfolds(issues_of):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (issue,) = issues_of("\n".join(lines))
    assert issue.code == "CFG011"
    assert "expands to more than" in issue.message
    assert issue.hint == "use fewer aliases"


def test_a_file_of_too_many_values_has_no_aliases_to_remove(issues_of):
    (issue,) = issues_of("\n".join(f"k{n}: {n}" for n in range(30_000)))
    assert "expands to more than" in issue.message
    assert issue.hint == "check the path: this may not be a run file"


@pytest.mark.parametrize(
    "content",
    [
        "variables: " + "[" * 100_000,
        "variables: " + "{a: " * 100_000,
        "variables:\n" + "".join(" " * n + "a:\n" for n in range(1, 1000)),
        "? " * 1000 + "x",
        "\n".join(["a0: &a0 x"] + [f"a{n}: &a{n} {'[' * 40}*a{n - 1}{']' * 40}" for n in range(1, 200)]),
    ],
    ids=["lists", "mappings", "block", "keys", "chained aliases"],
)
def test_deep_nesting_is_refused(content, issues_of):
    (issue,) = issues_of(content)
    assert issue.code == "CFG011"
    assert f"deeper than {MAX_DEPTH} levels" in issue.message


def test_a_key_that_is_no_text_is_refused_at_its_place(issues_of):
    found = issues_of("trainer:\n  1: x\n  true: y\n  ? [a]\n  : z\n")
    assert [(issue.code, issue.line, issue.column) for issue in found] == [
        ("CFG003", 2, 3),
        ("CFG003", 3, 3),
        ("CFG003", 4, 5),
    ]


def test_a_file_full_of_unknown_keys_is_answered_in_bounded_work(issues_of):
    found = issues_of("".join(f"key_{n}: 1\n" for n in range(20_000)))
    assert found[0].code == "CFG001"
    assert any("more problems" in issue.message for issue in found)
