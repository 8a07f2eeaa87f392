"""Rules ask what a task does: a task of another name has the rules of what it does."""

from dataclasses import replace

import pytest

from neobert.config.optimizers import OPTIMIZERS
from neobert.tasks.spec import MASKING_KEYS
from neobert.tasks.specs import SPECS
from profiles.registry import resolve_run
from validators.facts import NO_FACTS
from validators.planning import plan_run
from validators.rule import RULES

RUN = resolve_run("a100-prod")
PLAN = plan_run(RUN)

BUDGET = {"BUD001", "BUD003", "DAT025", "DAT033", "OPT006"}
OF_MASKS = {"DAT016", "NUM006"}


@pytest.mark.parametrize(
    ("predicts", "wanted", "unwanted"),
    [
        ("masked", BUDGET | OF_MASKS, {"TSK001", "TSK005"}),
        ("next", BUDGET, OF_MASKS | {"TSK001", "TSK005"}),
        ("pairs", {"TSK001", "TSK005"}, BUDGET | OF_MASKS),
    ],
)
def test_a_new_task_gets_the_rules_of_what_it_predicts(predicts, wanted, unwanted):
    toy = replace(SPECS["pretrain"], predicts=predicts)
    codes = {code for code, rule in RULES.items() if rule.tasks(toy)}
    assert wanted <= codes
    assert not unwanted & codes


def test_conversations_have_no_budget_of_pretraining():
    codes = {code for code, rule in RULES.items() if rule.tasks(SPECS["sft"])}
    assert codes >= {"SFT001", "SFT010", "DAT022", "DAT033", "OPT006"}
    assert not codes & {"BUD001", "BUD003", "DAT025", *OF_MASKS}


@pytest.mark.parametrize(
    ("predicts", "direction", "message", "wanted"),
    [
        ("masked", "bidirectional", "", ""),
        ("masked", "causal", "masked tokens, but NeoBERT is causal", "an encoder"),
        ("next", "causal", "", ""),
        ("next", "bidirectional", "next tokens, but NeoBERT attends in both directions", "a causal model"),
        ("labels", "causal", "", ""),
        ("labels", "bidirectional", "", ""),
    ],
)
@pytest.mark.parametrize("unread", [(), ("model.init=scaled", "model.decoder_init_range=0.05")])
def test_targets_need_a_direction_of_attention(monkeypatch, predicts, direction, message, wanted, unread):
    run = resolve_run("a100-prod", overrides=unread)
    monkeypatch.setitem(SPECS, "pretrain", replace(SPECS["pretrain"], predicts=predicts))
    attention = replace(PLAN.shape.attention, direction=direction)
    plan = PLAN._replace(shape=replace(PLAN.shape, attention=attention))
    found = list(RULES["MOD005"].judge(run, plan, NO_FACTS))
    assert len(found) == bool(unread) + bool(message)
    if message:
        assert found[-1].message == f"task pretrain predicts {message}"
        assert found[-1].hint.startswith(f"describe {wanted} in section model")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_muon_needs_an_architecture_with_layouts(name):
    run = resolve_run("a100-prod", overrides=(f"optimizer.name={name}", "dataset.path=text"))
    assert list(RULES["MOD005"].judge(run, PLAN, NO_FACTS)) == []
    plan = PLAN._replace(shape=replace(PLAN.shape, linear_layers={}))
    found = [(each.path, each.message, each.hint) for each in RULES["MOD005"].judge(run, plan, NO_FACTS)]
    message = f"{name} needs the layouts of matrices, and NeoBERT declares none"
    refused = [("optimizer.name", message, "set optimizer.name to adamw")]
    assert found == (refused if "muon" in name else [])


def test_keys_of_masking_are_unread_where_nothing_is_masked():
    for name, spec in SPECS.items():
        assert (set(MASKING_KEYS) <= set(spec.unread_keys)) == (spec.predicts != "masked"), name
