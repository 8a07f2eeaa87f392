"""Output files of predictions: what a format cannot hold is refused by name, and nothing is left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from neobert.errors import ProjectError
from neobert.prediction.inputs import Inputs
from neobert.prediction.outputs import write_rows

Rows = list[dict[str, Any]]


def written(rows: Rows, folder: Path, suffix: str) -> Path:
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "shard").write_text('{"prediction": 1}\n' * len(rows))
    output = folder / f"out{suffix}"
    write_rows(output, [folder / "shard"], inputs=Inputs(folder / "in.jsonl", ()), suffix=suffix)
    return output


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([2**70], "int too large"),
        ([{}], "no child field"),
        ([1, "one"], "'one' with type str"),
        ([[1], ["one"]], "'one' with type str"),
        (["\ud800"], "surrogates not allowed"),
    ],
)
def test_what_parquet_cannot_hold_is_refused(values, problem, tmp_path):
    with pytest.raises(ProjectError, match="parquet cannot hold a column") as refusal:
        written([{"value": value} for value in values], tmp_path, ".parquet")
    assert problem in refusal.value.message
    assert refusal.value.hint == "choose an output file that ends in .jsonl"


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_a_column_that_the_first_row_lacks_is_not_left_out(suffix, tmp_path):
    with pytest.raises(ProjectError, match="a row has a column 'later', which the first row lacks"):
        written([{"text": "a"}, {"text": "b", "later": 1}], tmp_path, suffix)


def test_json_keeps_what_utf8_cannot_encode(tmp_path):
    row = {"text": "\ud800 caf\u00e9", "later": {}}
    (line,) = written([row], tmp_path, ".jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == row | {"prediction": 1}
    assert "caf\u00e9" in line
    assert "\\ud800" in written([row], tmp_path, ".csv").read_text(encoding="utf-8")
