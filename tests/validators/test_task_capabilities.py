"""Rules ask what a task does: a task of another name has the rules of what it does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neobert.tasks.spec import MASKING_KEYS
from neobert.tasks.specs import SPECS
from validators.rule import RULES

BUDGET = {"BUD001", "BUD003", "DAT025", "DAT033", "OPT006"}
OF_MASKS = {"DAT016", "NUM006"}


@pytest.mark.parametrize(
    ("predicts", "wanted", "unwanted"),
    [
        ("masked", BUDGET | OF_MASKS, {"TSK001", "TSK005"}),
        ("next", BUDGET, OF_MASKS | {"TSK001", "TSK005"}),
        ("pairs", set(), BUDGET | OF_MASKS | {"TSK001", "TSK005"}),
    ],
)
def test_a_new_task_gets_the_rules_of_what_it_predicts(predicts, wanted, unwanted) -> None:
    toy = replace(SPECS["pretrain"], predicts=predicts)
    codes = {code for code, rule in RULES.items() if rule.tasks(toy)}
    assert wanted <= codes
    assert not unwanted & codes


def test_keys_of_masking_are_unread_where_nothing_is_masked() -> None:
    for name, spec in SPECS.items():
        assert (set(MASKING_KEYS) <= set(spec.unread)) == (spec.predicts != "masked"), name
