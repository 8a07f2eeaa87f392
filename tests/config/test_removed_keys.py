"""Keys that were removed: a run file that has one is refused, a config that was stored with one is read."""

import pytest

from neobert.config import ConfigError, all_keys, from_dict, to_dict
from neobert.config.canonical import flatten
from neobert.config.keys import key_effect
from neobert.config.migrated_keys import rename_table
from neobert.config.removed_keys import REMOVED, WAYS_OUT, removal_hint, without_removed
from neobert.config.schema import RunConfig

UNSET = {
    "trainer.ema_decay": None,
    "datacollator.mlm_probability_final": None,
    "datacollator.mlm_probability_over": "run",
}
SET = {"trainer.ema_decay": 0.99, "datacollator.mlm_probability_final": 0.15}


def stored(values: dict[str, object]) -> dict[str, object]:
    """Return the default config as an earlier version stored it, with values of removed keys."""
    config = to_dict(RunConfig())
    for key, value in values.items():
        section, _, name = key.partition(".")
        config[section][name] = value
    return config


def test_every_removed_key_is_refused_and_has_a_way_out_if_it_had_an_effect():
    assert set(REMOVED) == set(UNSET)
    assert not set(REMOVED) & set(all_keys())
    assert set(REMOVED) <= set(rename_table()["keys"])
    assert set(WAYS_OUT) == set(SET)


@pytest.mark.parametrize("key", REMOVED)
@pytest.mark.parametrize("value", ["0.5", "null"])
def test_a_run_file_with_a_removed_key_has_one_error_at_its_line(key, value, resolve_text):
    section, _, name = key.partition(".")
    with pytest.raises(ConfigError) as caught:
        resolve_text(f"{section}:\n  {name}: {value}\n")
    (issue,) = caught.value.issues
    assert (issue.code, issue.path, issue.line) == ("CFG007", key, 2)
    assert issue.message == f"{key} was removed"
    assert issue.hint.startswith("remove the line; ")
    assert ("docs/learning.md" if value == "0.5" else "it has no value") in issue.hint


@pytest.mark.parametrize("keep_set", [True, False])
def test_a_key_that_was_not_set_leaves_the_stored_config_of_today(keep_set):
    config = without_removed(stored(UNSET), keep_set=keep_set)
    assert config == to_dict(RunConfig())
    assert from_dict(config) == RunConfig()


def test_a_span_without_a_final_rate_had_no_effect():
    """`mlm_probability_over: decay` alone changed nothing (CFG013 of version 0.2.0)."""
    alone = stored(UNSET | {"datacollator.mlm_probability_over": "decay"})
    assert without_removed(alone, keep_set=True) == to_dict(RunConfig())


def test_a_key_that_was_set_is_kept_where_runs_are_compared():
    kept = flatten(without_removed(stored(UNSET | SET), keep_set=True))
    assert {key: kept.get(key) for key in SET} == SET
    assert from_dict(without_removed(stored(SET), keep_set=False)) == RunConfig()


def test_stored_values_that_are_not_sections_are_unchanged():
    assert without_removed({"seed": 3, "trainer": None}, keep_set=False) == {"seed": 3, "trainer": None}


def test_a_removed_key_keeps_its_effect():
    assert {key: key_effect(key) for key in REMOVED} == REMOVED
    assert key_effect("trainer.never_defined") is None


def test_only_removed_keys_have_a_way_out():
    assert removal_hint(["seed", "model.hidden_size"]) == ""
    assert removal_hint(["model.hidden_size", "trainer.ema_decay"]) == WAYS_OUT["trainer.ema_decay"]
