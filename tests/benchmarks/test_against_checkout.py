"""Two checkouts in turns, with stand-ins for `bench`'s arm that need neither a GPU nor torch."""

from __future__ import annotations

import pytest
from against_checkout import HERE, OTHER, arms, measure, shares

ARM = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    answers = {
        "describe": {"device": "DEVICE", "config": json.load(open(sys.argv[1]))},
        "turn": {"seconds": SECONDS * request.get("count", 0), "steps": request.get("count"), "tokens": 640},
    }
    print(json.dumps(answers.get(request["do"], {})), flush=True)
"""


@pytest.fixture
def trees(tmp_path, monkeypatch):
    """Return two checkouts, the second of which is slower; the current folder is a third one."""
    for name, seconds in ((HERE, 0.9), (OTHER, 1.0), ("current", 5.0)):
        package = tmp_path / name / "neobert" / "bench"
        package.mkdir(parents=True)
        for folder in (package, package.parent):
            (folder / "__init__.py").touch()
        (package / "arm.py").write_text(ARM.replace("SECONDS", str(seconds)).replace("DEVICE", name))
    monkeypatch.chdir(tmp_path / "current")
    return {name: tmp_path / name for name in (HERE, OTHER)}


def test_each_side_runs_its_own_code_on_the_same_config(trees):
    kept = []
    with arms(trees, {"seed": 7}) as workers:
        turns, found = measure(
            workers, rounds=3, steps=2, warm=1, keep=lambda turns: kept.append(shares(turns))
        )
    assert {name: each["device"] for name, each in found.items()} == {HERE: HERE, OTHER: OTHER}
    assert all(each["config"] == {"seed": 7} for each in found.values())
    assert len(kept) == 3
    assert shares(turns) == kept[-1] == {"median": 0.9, "least": 0.9, "greatest": 0.9}
