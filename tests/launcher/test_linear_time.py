"""Time of `lint` on hostile files: in proportion to their size."""

import time

import pytest

LENGTH = 100_000
MAX_SECONDS = 3.0
"""A quadratic pattern takes 10 s or more for `LENGTH` characters, a linear one milliseconds."""

CONFIG = "profile: cpu-demo\noptimizer:\n  lr: {}\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("run.yaml", CONFIG.format("x" + " " * LENGTH + "y"), id="blanks in a value"),
        pytest.param("run.yaml", CONFIG.format("x" + " #" * (LENGTH // 2)), id="comments"),
        pytest.param("run.yaml", CONFIG.format("[" * 40 + "," * LENGTH), id="a flow without its end"),
        pytest.param("run.yaml", "x" * LENGTH + ": 1\ntrainer: {max_stepz: 3}\n", id="a long key"),
        pytest.param("run.toml", "a" * LENGTH, id="a word"),
        pytest.param("run.toml", "\n" * LENGTH + "x", id="empty lines"),
        pytest.param("run.toml", " " * LENGTH + "x", id="blanks before a key"),
        pytest.param("run.toml", "'a\n" * (LENGTH // 3), id="quotes"),
        pytest.param("run.toml", f"[optimizer]\nx{'.a' * LENGTH} = 1\n", id="a dotted key"),
        pytest.param("run.toml", f"[x{'.a' * LENGTH}]\n" + "b = 1\n" * LENGTH, id="a deep table"),
        pytest.param("run.toml", 'a = ["""\n"' + '\\"' * LENGTH + '\n"""]\n', id="escaped quotes"),
        pytest.param("run.json", '{"a' * LENGTH, id="open objects"),
    ],
)
def test_lint_takes_time_in_proportion_to_the_length_of_a_line(name, text, command, tmp_path):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    start = time.process_time()
    by_name, in_folder = command("lint", path), command("lint", tmp_path)
    assert time.process_time() - start < MAX_SECONDS
    assert by_name.code in (1, 2)
    assert in_folder.code in (1, 2)
