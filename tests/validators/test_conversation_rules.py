"""Conversation rules: values at their limits, what they report, and their hints."""

from typing import Any

import pytest

from tests.validators.judging import FACTS, found, run_of, with_facts, with_prepared
from validators.facts_run import ConversationFaultFacts, PreparationErrorFacts
from validators.finding import Severity

SFT = "task=sft"


def counted_as(**conversations: int) -> dict[str, Any]:
    return {"conversations": conversations, "num_tokens": 1000, "num_conversations": 9}


@pytest.mark.parametrize(
    ("hint", "path"),
    [("set tokenizer.chat_template to turns", "tokenizer.chat_template"), ("add turns", "dataset.path")],
)
def test_a_preparation_without_targets_is_reported_with_its_reason(hint, path):
    refusal = PreparationErrorFacts(code="SFT001", message="no token is supervised", hint=hint)
    (finding,) = found("SFT001", run_of(SFT), with_facts("inspection", refusal=refusal, prepared=None))
    assert (finding.message, finding.hint, finding.path) == ("no token is supervised", hint, path)
    assert found("DAT014", run_of(SFT), with_facts("inspection", refusal=refusal, prepared=None)) == []


@pytest.mark.parametrize("kind", ["no-turn", "failed", "rewritten", "lost", "control"])
def test_conversations_without_targets_name_the_first_and_its_reason(kind):
    fault = ConversationFaultFacts(split="train", kind=kind, count=2, first=1007, detail="the reason")
    facts = with_prepared(**counted_as(without_target=1), faults=(fault,))
    (finding,) = found("SFT001", run_of(SFT), facts)
    assert finding.message == (
        "1 of 9 conversations do not have a supervised token "
        "(2 training conversations, the first is number 1,007 in this split: the reason)"
    )
    (bare,) = found("SFT001", run_of(SFT), with_prepared(**counted_as(without_target=1)))
    assert bare.message == "1 of 9 conversations do not have a supervised token"


@pytest.mark.parametrize(("supervised", "is_found"), [(994, False), (995, True), (1000, True)])
def test_the_share_of_supervised_tokens(supervised, is_found):
    facts = with_prepared(**counted_as(supervised=supervised))
    assert bool(found("SFT002", run_of(SFT), facts)) is is_found


@pytest.mark.parametrize(("kind", "can_use_prefixes"), [("outside", True), ("no-prompt", False)])
def test_prefixes_are_no_way_out_for_a_template_without_a_generation_prompt(kind, can_use_prefixes):
    fault = ConversationFaultFacts(split="train", kind=kind, count=2, first=7, detail="a role header")
    (finding,) = found("SFT002", run_of(SFT), with_prepared(faults=(fault,)))
    assert ("sft.supervise" in finding.hint) is can_use_prefixes
    assert "set tokenizer.chat_template to a" in finding.hint


@pytest.mark.parametrize("num_tokens", [None, 0, 1])
def test_text_without_counts_has_no_share(num_tokens):
    facts = with_prepared(conversations={}, num_tokens=num_tokens)
    assert [found(code, run_of(SFT), facts) for code in ("SFT001", "SFT002", "SFT008")] == [[], [], []]


@pytest.mark.parametrize(
    ("lost", "kept", "severity"),
    [
        (100, 9900, None),
        (101, 9899, Severity.WARN),
        (1000, 9000, Severity.WARN),
        (1001, 8999, Severity.FAIL),
        (1, 0, Severity.FAIL),
        (0, 0, None),
    ],
)
def test_supervised_tokens_that_are_lost(lost, kept, severity):
    findings = found("SFT008", run_of(SFT), with_prepared(conversations={"lost": lost, "supervised": kept}))
    assert [each.severity or Severity.FAIL for each in findings] == ([] if severity is None else [severity])
    assert all(each.message.endswith(f": {lost:,} of {lost + kept:,}") for each in findings)


def test_hints_name_what_is_not_set_yet():
    lost = with_prepared(conversations={"lost": 9})
    hints = [
        found("SFT008", run_of(SFT, f"dataset.long_documents={kind}"), lost)[0].hint
        for kind in ("drop", "split")
    ]
    assert found("SFT008", run_of(SFT), lost)[0].message.endswith(": 9 of 9")
    raised = "raise dataset.max_seq_length"
    assert hints == [f"{raised}, or set dataset.long_documents to split", raised]
    full = (
        "model.pretrained_checkpoint=base",
        "model.max_position_embeddings=512",
        "dataset.max_seq_length=512",
    )
    (whole,) = found("SFT008", run_of(SFT, "dataset.long_documents=split", *full), lost)
    assert whole.hint == f"start from a model of more than 512 positions, and {raised}"
    other = with_prepared(is_other_template=True)
    own = [
        found("SFT010", run_of(SFT, *more), other)[0].hint
        for more in ((), ("tokenizer.chat_template=turns",))
    ]
    assert own[0].startswith("set tokenizer.path to the folder of the weights, or waive")
    assert own[1].startswith("set tokenizer.chat_template to null, or waive")
    assert FACTS.inspection.prepared.is_other_template is False
