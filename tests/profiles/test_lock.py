import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.cli.app import run as command
from profiles import inherit, lock
from profiles.registry import list_profiles, load_profile, resolve_run, shipped_profile
from tests.refusals import refusal_of
from validators.facts import NO_FACTS
from validators.planning import plan_run
from validators.rules.config import unpinned_profile


@pytest.fixture(autouse=True)
def read_again() -> Iterator[None]:
    """Profiles of this project are read once in a process; these tests change their files."""
    shipped_profile.cache_clear()
    yield
    shipped_profile.cache_clear()


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the lock that a test may change."""
    path = tmp_path / "profiles.lock"
    path.write_text(inherit.LOCK.read_text())
    monkeypatch.setattr(inherit, "LOCK", path)
    return path


def test_the_lock_is_current():
    assert lock.shipped_hashes() == inherit.read_pins(), (
        "review the change, then run `python -m profiles.lock --write`"
    )
    assert set(inherit.read_pins()) == set(list_profiles())


def test_check_passes_then_names_what_changed(copied, capsys):
    assert lock.main(["--check"]) == 0
    locked = json.loads(copied.read_text())
    copied.write_text(json.dumps(locked | {"a100-prod": "0" * 64, "gone": "1" * 64}))
    assert lock.main(["--check"]) == 1
    assert "differ from profiles.lock: a100-prod, gone" in capsys.readouterr().out
    assert not load_profile("a100-prod").is_locked
    assert load_profile("h100-prod").is_locked


def test_write_makes_it_current(copied):
    before = copied.read_text()
    copied.unlink()
    assert lock.main(["--check"]) == 1
    assert lock.main(["--write"]) == 0
    assert copied.read_text() == before


def test_the_hash_covers_what_a_profile_requires_and_expects(tmp_path, monkeypatch):
    monkeypatch.setenv("NEOBERT_PROFILE_PATH", str(tmp_path))
    digests = set()
    for about in ("", ", expects: {mfu: 0.2}", ", requires: {num_gpus: 2}", "  # a comment"):
        (tmp_path / "mine.yaml").write_text(
            f"about: {{name: mine, kind: smoke, intent: x{about.partition('#')[0]}}}\nextends: cpu-demo\n"
        )
        digests.add(load_profile("mine").digest)
    assert len(digests) == 3


def said_of(name: str) -> list[str]:
    shipped_profile.cache_clear()
    run = resolve_run(name)
    return [found.message for found in unpinned_profile(run, plan_run(run), NO_FACTS)]


def test_a_pin_that_is_missing_is_no_pin_that_fits(copied):
    locked = json.loads(copied.read_text())
    del locked["a100-prod"]
    copied.write_text(json.dumps(locked))
    assert (said_of("a100-prod"), said_of("h100-prod")) == (["a100-prod has no pin in profiles.lock"], [])
    copied.unlink()
    assert said_of("h100-prod") == ["h100-prod has no pin in profiles.lock"]


def test_a_new_profile_among_the_shipped_ones_needs_its_pin(copied, tmp_path, monkeypatch):
    shipped = tmp_path / "shipped"
    shutil.copytree(inherit.SHIPPED, shipped, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    monkeypatch.setattr(inherit, "SHIPPED", shipped)
    monkeypatch.setattr(lock, "SHIPPED", shipped)
    text = "about: {name: new-prod, kind: production, intent: x}\nextends: a100-prod\n"
    (shipped / "production" / "new-prod.yaml").write_text(text)
    assert said_of("new-prod") == ["new-prod has no pin in profiles.lock"]
    assert lock.main(["--write"]) == 0
    assert said_of("new-prod") == []
    monkeypatch.setattr(inherit, "SHIPPED", tmp_path / "elsewhere")
    monkeypatch.setenv(inherit.FOLDERS_ENV, f"{shipped}/production:{shipped}/base:{tmp_path}")
    (tmp_path / "own.yaml").write_text(text.replace("new-prod", "own"))
    assert said_of("own") == []


def test_a_shipped_file_is_known_by_its_path_and_by_what_links_to_it(tmp_path):
    file = inherit.SHIPPED / "production" / "a100-prod.yaml"
    (tmp_path / "link.yaml").symlink_to(file)
    assert inherit.is_shipped(str(file))
    assert inherit.is_shipped(str(inherit.SHIPPED / "smoke" / ".." / "production" / "a100-prod.yaml"))
    assert inherit.is_shipped(str(tmp_path / "link.yaml"))
    assert not inherit.is_shipped(str(tmp_path / "a100-prod.yaml"))


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"a100-prod": 7}', b"\xff\xfe"])
def test_a_damaged_lock_is_named_and_can_be_written_anew(content, copied, capsys):
    before = copied.read_bytes()
    copied.write_bytes(content)
    error = refusal_of(load_profile, "CFG005", "profiles.lock cannot be read", "a100-prod")
    assert error.place == str(copied)
    assert lock.main(["--check"]) == 2
    assert "profiles.lock cannot be read" in capsys.readouterr().out
    assert command(["lint", str(inherit.SHIPPED / "smoke")]) == 2
    reported = capsys.readouterr().out
    assert "CFG005" in reported
    assert "unexpected" not in reported
    assert lock.main(["--write"]) == 0
    assert copied.read_bytes() == before


def test_a_lock_that_is_a_folder_is_damaged(copied):
    copied.unlink()
    copied.mkdir()
    refusal_of(inherit.read_pins, "CFG005", "cannot be read")
