"""What a change of each key affects is stated in the schema, and nowhere else."""

from dataclasses import dataclass
from typing import Any

import pytest

from neobert.config import RunConfig, all_keys
from neobert.config.keys import is_compared_by_content, key_effect, keys_affecting, without_effects
from neobert.rehearsal.script import plan_rehearsal, rehearsal_values
from neobert.schema_fields import EFFECTS, PER_KEY, key, require_effects, section


@dataclass(frozen=True, kw_only=True)
class Mixed:
    stated: int = key(1, "States what it affects.", affects="data")
    silent: int = key(2, "Does not.")


def test_every_key_has_exactly_one_effect():
    assert [name for name in all_keys() if key_effect(name) not in EFFECTS] == []
    assert sum(len(keys_affecting(effect)) for effect in EFFECTS) == len(all_keys())  # type: ignore[arg-type]


def test_a_section_does_not_import_without_it():
    silent: Any = section
    with pytest.raises(TypeError, match="affects"):
        silent(Mixed, "A section.")
    with pytest.raises(TypeError, match="affects='speed' is not one of model, data"):
        silent(Mixed, "A section.", affects="speed")


def test_a_key_of_a_mixed_section_does_not_import_without_it():
    with pytest.raises(TypeError, match=r"Mixed\.silent has no affects= .*: write one of model, data"):
        section(Mixed, "A section.", affects=PER_KEY)
    section(Mixed, "A section.", affects="numerics")


def test_a_key_of_the_run_does_not_import_without_it():
    with pytest.raises(TypeError, match=r"Mixed\.silent"):
        require_effects(Mixed)


def test_text_and_tokenizer_are_compared_by_content():
    compared = {name for name in all_keys() if is_compared_by_content(name)}
    assert {"dataset.path", "tokenizer.path", "tokenizer.name"} <= compared <= keys_affecting("data")


def test_a_rehearsal_sets_little_otherwise_that_shapes_the_run():
    replaced = rehearsal_values(RunConfig(), __file__, plan_rehearsal(100), is_resumed=False)  # type: ignore[arg-type]
    assert set(without_effects(replaced, ("reporting", "limits", "start", "cadence"))) == {
        "trainer.continue_from",
        "trainer.early_stopping_patience",
        "trainer.eval_max_batches",
        "trainer.max_epochs",
        "trainer.max_steps",
        "trainer.batch_size_warmup_steps",
        "trainer.sequence_length_warmup_percent",
        "trainer.sequence_length_warmup_steps",
        "distributed.nnodes",
        "distributed.replicas",
    }
