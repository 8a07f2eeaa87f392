"""No rule raises on a transformers model, whose section lacks the keys of a NeoBERT."""

import json
from dataclasses import replace

import pytest

from neobert.tasks.specs import SPECS
from tests.families.layouts import RELEASED
from tests.validators.judging import FACTS, run_of
from validators.core import _evaluate_rule as outcome_of
from validators.planning import plan_run
from validators.rule import RULES


@pytest.mark.parametrize("packages", [dict(FACTS.software.packages), {"torch": "2.13", "triton": "3.6"}])
@pytest.mark.parametrize("packs", ["true", "false"])
@pytest.mark.parametrize("task", SPECS)
def test_every_rule_judges_a_model_of_transformers(tmp_path, task, packs, packages):
    (tmp_path / "config.json").write_text(json.dumps(RELEASED["ModernBERT-base"]), encoding="utf-8")
    run = run_of(
        "model.type=hf", f"model.config={tmp_path}", f"task={task}", f"datacollator.pack_sequences={packs}"
    )
    facts, plan = replace(FACTS, software=replace(FACTS.software, packages=packages)), plan_run(run)
    results = [outcome_of(rule, run, plan, facts).result for rule in RULES.values()]
    assert [result.message for result in results if "raised" in result.message] == []
