"""A run that began with other values of its shipped profile continues with them."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config import to_dict
from neobert.config.canonical import flatten
from neobert.config.document import Document
from neobert.config.nodes import Origin, build
from neobert.config.overrides import parse_overrides
from neobert.config.resolution import resolve
from neobert.tasks.specs import sections_read
from profiles.inherit import FOLDERS_ENV, find_profile, load_layers, with_profile_name
from profiles.recipe import with_recipe
from profiles.registry import RecordedRun, resolve_run

# Keys of a recipe, alone, in pairs that replace each other, and with a list.
VALUES: Mapping[str, tuple[Any, ...]] = {
    "optimizer.name": ("adamw", "muon"),
    "optimizer.lr": (1e-3, 2e-3, 3e-3),
    "optimizer.betas": ([0.9, 0.95], [0.9, 0.98]),
    "scheduler.warmup_steps": (0, 10),
    "scheduler.warmup_percent": (None, 6, 10),
    "scheduler.decay_percent": (None, 40),
    "model.hidden_size": (192, 384),
    "dataset.validation_split": (None, 0.05),
    "dataset.eval_samples": (None, 16),
    "trainer.save_steps": (100, 50),
}
Values = dict[str, Any]


def values(most: int = len(VALUES)) -> st.SearchStrategy[Values]:
    keys = st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=most)
    return keys.flatmap(
        lambda names: st.fixed_dictionaries({name: st.sampled_from(VALUES[name]) for name in names})
    )


def arguments(chosen: Values) -> list[str]:
    return [f"{key}={'null' if value is None else value}" for key, value in chosen.items()]


def begun(profile_was: Values, user: Values) -> RecordedRun:
    """Return the record of a run that a version with other values in profile cpu has launched."""
    layers = load_layers(find_profile("cpu"))
    tree: Values = {}
    for key, value in profile_was.items():
        section, _, name = key.partition(".")
        tree.setdefault(section, {})[name] = value
    origin = Origin("profile", "/elsewhere/profiles/development/cpu.yaml", 7)
    was = Document(origin.file, "profile", build(tree, lambda _: (origin, origin), []))
    documents = [*with_recipe(layers.documents), was, with_profile_name(layers, "cpu")]
    old = resolve(documents, parse_overrides(arguments(user)), sections_read())
    origins = {key: each._asdict() for key, each in old.origins.items()}
    return RecordedRun("runs/a/resolved.json", to_dict(old.config), origins)


@given(profile_was=values(), user=values(4))
def test_the_same_command_continues_with_the_values_it_began_with(profile_was, user):
    old = begun(profile_was, user)
    continued = resolve_run("cpu", (), arguments(user), begun=old)
    assert to_dict(continued.config) == old.config
    today = flatten(to_dict(resolve_run("cpu", (), arguments(user)).config))
    assert set(continued.begun_with) == {
        key for key, value in flatten(dict(old.config)).items() if today[key] != value
    }


@given(profile_was=values(), user=values(4))
def test_a_run_that_was_continued_once_continues_again(profile_was, user):
    first = resolve_run("cpu", (), arguments(user), begun=begun(profile_was, user))
    origins = {key: each._asdict() for key, each in first.origins.items()}
    second = resolve_run(
        "cpu", (), arguments(user), begun=RecordedRun("resolved.json", to_dict(first.config), origins)
    )
    assert second.config == first.config


@given(profile_was=values(), user=values(4), now=values(4))
def test_what_the_user_sets_or_no_longer_sets_is_as_today(profile_was, user, now):
    continued = resolve_run("cpu", (), arguments(now), begun=begun(profile_was, user))
    today = flatten(to_dict(resolve_run("cpu", (), arguments(now)).config))
    flat = flatten(to_dict(continued.config))
    for key in {*now, *user}:
        assert flat[key] == today[key], key


def test_a_key_that_the_run_did_not_know_has_the_default_of_its_time():
    old = begun({}, {})
    config = {**old.config, "scheduler": {**old.config["scheduler"]}}
    origins = dict(old.origins)
    del config["scheduler"]["warmup_percent"], origins["scheduler.warmup_percent"]
    continued = resolve_run("cpu", begun=RecordedRun(old.file, config, origins))
    assert continued.config.scheduler.warmup_percent is None, "the schema's default, not the profile's 6"
    assert continued.begun_with == ("scheduler.warmup_percent",)


def test_the_record_of_another_profile_is_not_taken():
    assert resolve_run("cpu-demo", begun=begun({"optimizer.lr": 1e-2}, {})).begun_with == ()


def test_values_of_a_profile_of_ones_own_are_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDERS_ENV, str(tmp_path))
    head = "about: {name: mine, kind: development, intent: To try., requires: {device: cpu}}\nextends: cpu\n"
    (tmp_path / "mine.yaml").write_text(f"{head}optimizer: {{lr: 0.5}}\n", encoding="utf-8")
    old = begun({"optimizer.lr": 1e-2, "optimizer.weight_decay": 0.3, "trainer.logging_steps": 3}, {})
    mine = {"kind": "profile", "file": str(tmp_path / "mine.yaml")}
    record = RecordedRun(
        old.file, {**old.config, "profile": "mine"}, {**old.origins, "trainer.logging_steps": mine}
    )
    continued = resolve_run("mine", begun=record)
    assert continued.config.optimizer.lr == 0.5, "set by the user's profile today"
    assert continued.config.trainer.logging_steps == 10, "no longer set by the user's profile"
    assert continued.begun_with == ("optimizer.weight_decay",)


def test_a_record_that_is_damaged_changes_nothing_or_is_named():
    old = begun({"optimizer.lr": 1e-2}, {})
    unreadable = RecordedRun(old.file, old.config, dict.fromkeys(old.origins, "?"))
    assert resolve_run("cpu", begun=unreadable).begun_with == ()
    wrong = RecordedRun(old.file, {**old.config, "optimizer": {"lr": "fast"}}, old.origins)
    with pytest.raises(Exception, match=r"optimizer\.lr") as caught:
        resolve_run("cpu", begun=wrong)
    assert old.file in str(caught.value)
