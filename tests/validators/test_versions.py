import re
import tomllib
from pathlib import Path

import pytest

from validators.rules.host import OLDEST, OLDEST_KERNELS, is_older, release_numbers

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize(
    ("version", "oldest", "expected"),
    [
        ("2.9", "2.11", True),
        ("2.11", "2.11.0", False),
        ("2.11.0", "2.11", False),
        ("3", "2.11", False),
        ("", "1", True),
    ],
)
def test_is_older(version, oldest, expected):
    assert is_older(version, oldest) is expected


def test_minimums_are_those_of_the_package():
    declared = dict(re.fullmatch(r"([a-z-]+)>=([\d.]+)", line).groups() for line in PROJECT["dependencies"])
    assert declared.items() >= OLDEST.items()


def test_minimums_of_kernels_are_those_of_the_extras():
    lines = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    declared = dict(re.match(r"([\w-]+)(?:\[\w+\])?>=([\w.]+)", line).groups() for line in lines)
    for name, (oldest, hint) in OLDEST_KERNELS.items():
        assert release_numbers(declared[name]) == release_numbers(oldest)
        assert f"{name}>={declared[name]}" in hint
