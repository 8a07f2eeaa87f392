from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiles import lock, pins
from profiles.registry import list_profiles, load_profile


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the lock that a test may change."""
    path = tmp_path / "profiles.lock"
    path.write_text(pins.LOCK.read_text())
    monkeypatch.setattr(pins, "LOCK", path)
    return path


def test_the_lock_is_current() -> None:
    assert lock.shipped_hashes() == pins.read_pins(), (
        "read the change, then `python -m profiles.lock --write`"
    )
    assert set(pins.read_pins()) == set(list_profiles())


def test_check_passes_then_names_what_changed(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lock.main(["--check"]) == 0
    locked = json.loads(copied.read_text())
    copied.write_text(json.dumps(locked | {"a100-prod": "0" * 64, "gone": "1" * 64}))
    assert lock.main(["--check"]) == 1
    assert "differ from profiles.lock: a100-prod, gone" in capsys.readouterr().out
    assert not load_profile("a100-prod").is_locked
    assert load_profile("h100-prod").is_locked


def test_write_makes_it_current(copied: Path) -> None:
    before = copied.read_text()
    copied.unlink()
    assert lock.main(["--check"]) == 1
    assert lock.main(["--write"]) == 0
    assert copied.read_text() == before


def test_the_hash_covers_what_a_profile_requires_and_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEOBERT_PROFILE_PATH", str(tmp_path))
    digests = set()
    for about in ("", ", expects: {mfu: 0.2}", ", requires: {num_gpus: 2}", "  # a comment"):
        (tmp_path / "mine.yaml").write_text(
            f"about: {{name: mine, kind: smoke, intent: x{about.partition('#')[0]}}}\nextends: cpu-demo\n"
        )
        digests.add(load_profile("mine").digest)
    assert len(digests) == 3
