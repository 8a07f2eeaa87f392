"""Facts that are there and do not say: the check is unknown and required, and says what is missing."""

from typing import Any

import pytest

from validators.finding import Status

TWO = {"config.distributed.nproc_per_node": 2, "config.dataset.num_workers": 1}
ABSENT = TWO | {"facts.distributed.absent": [1]}
PREPARED = "facts.inspection.prepared"
NO_LINKS = {"facts.gpu_health.0.num_nvlinks": None, "facts.gpu_health.0.pcie_generation_max": None}

UNREACHED = {
    "facts.data": None,
    PREPARED: None,
    "facts.inspection.refusal.message": "nobody answers",
}
HUB_TEXT = {"config.dataset.path": None, "config.dataset.name": "owner/text"}
HUB_TOKENIZER = {"config.tokenizer.path": None, "config.tokenizer.name": "owner/words"}
OWN_TEXT = {"config.dataset.path": "text.txt", "config.dataset.name": None}
OWN_TOKENIZER = {"config.tokenizer.path": "words", "config.tokenizer.name": None}
TRAINED_TOKENIZER = {"config.tokenizer.path": None, "config.tokenizer.name": None}
NO_TEXT = {"facts.inspection.refusal.code": "DAT001"}
NO_TOKENIZER = {"facts.inspection.refusal.code": "TOK001"}

ROWS: list[tuple[str, dict[str, Any], str]] = [
    *[(code, ABSENT, "rank 1 did not start") for code in ("DST002", "DST003", "DST005", "DST006")],
    *[
        (code, TWO | {"facts.distributed.backend": "gloo"}, "ran on CPUs")
        for code in ("DST002", "DST003", "DST005", "DST006")
    ],
    ("DST002", TWO | {"facts.distributed.collectives": []}, "no collective was tested"),
    ("DST003", TWO | NO_LINKS, "how the GPUs are connected"),
    ("DST003", TWO | {"facts.distributed.bus_bytes_per_s": None}, "how the GPUs are connected"),
    ("DST005", TWO | {"facts.distributed.parameters": []}, "the weights of the test model were not compared"),
    ("DST006", TWO | {"facts.distributed.loss": None}, "the loss of the test model was not computed"),
    *[
        (code, {PREPARED: None, "facts.inspection.refusal.message": "the disk is full"}, "the disk is full")
        for code in ("DAT002", "DAT003", "DAT004", "DAT005", "DAT015", "DAT017", "NUM006")
    ],
    ("DAT014", UNREACHED | HUB_TEXT | NO_TEXT, "nobody answers (DAT001), and the Hub was not checked"),
    (
        "DAT014",
        UNREACHED | HUB_TOKENIZER | NO_TOKENIZER,
        "nobody answers (TOK001), and the Hub was not checked",
    ),
    ("DAT003", {f"{PREPARED}.sampled_microbatches": 0}, "fewer microbatches than ranks"),
    ("DAT004", {f"{PREPARED}.epochs": None}, "size of the data is unknown"),
    ("NUM006", {f"{PREPARED}.num_maskable": 0}, "no token of the sample can be masked"),
]


@pytest.mark.parametrize(("code", "situation", "reason"), ROWS)
def test_what_does_not_say_is_unknown(code, situation, reason, judge_situation):
    judged = judge_situation(situation)
    assert judged.status(code) is Status.UNKNOWN
    assert judged.of(code) == []
    assert reason in judged.checks[code].message


@pytest.mark.parametrize(
    "situation",
    [
        HUB_TEXT | OWN_TOKENIZER | NO_TOKENIZER,
        HUB_TEXT | TRAINED_TOKENIZER | NO_TOKENIZER,
        OWN_TEXT | HUB_TOKENIZER | NO_TEXT,
        {"config.dataset.name": "builtin:python-docs", "config.dataset.path": None} | NO_TEXT,
        HUB_TEXT | {"facts.inspection.refusal.code": "DAT011"},
    ],
)
def test_what_is_not_the_hubs_is_refused_whoever_answers(situation, judge_situation):
    assert judge_situation(UNREACHED | situation).status("DAT014") is Status.FAIL


def test_text_that_the_hub_has_and_that_cannot_be_opened_is_refused(judge_situation):
    there = {key: value for key, value in UNREACHED.items() if key != "facts.data"}
    assert judge_situation(there | HUB_TEXT | NO_TEXT).status("DAT014") is Status.FAIL


@pytest.mark.parametrize("code", ["DST001", "DST002", "DST004", "DST005", "DST006"])
def test_ranks_that_nobody_asked_are_unknown_and_required(code, judge_situation):
    judged = judge_situation(TWO | {"facts.distributed": None})
    assert judged.status(code) is Status.UNKNOWN
    assert judged.checks[code].required
    alone = judge_situation({"facts.distributed": None})
    assert alone.status(code) is Status.SKIP


def test_a_stream_is_not_judged_by_its_length(judge_situation):
    stream = {"config.dataset.streaming": True, "config.dataset.eval_samples": 100}
    assert judge_situation(stream | {f"{PREPARED}.epochs": None}).status("DAT004") is Status.SKIP


@pytest.mark.parametrize(
    ("expires", "expected"), [("2026-01-15", Status.WARN), ("2026-01-14", Status.UNKNOWN)]
)
def test_a_waiver_answers_for_an_unknown_until_its_day(expires, expected, judge_situation):
    waiver = {"code": "GPU004", "reason": "the node's health check reads the log", "expires": expires}
    judged = judge_situation({"facts.gpu_log": None, "config.waivers": [waiver]})
    assert judged.status("GPU004") is expected


def test_a_waiver_answers_for_no_rule_that_throws(judge_situation, monkeypatch):
    from dataclasses import replace

    from validators.rule import RULES

    def broken(*_: Any) -> Any:
        raise KeyError("code")
        yield

    monkeypatch.setitem(RULES, "GPU004", replace(RULES["GPU004"], judge=broken))
    waiver = {"code": "GPU004", "reason": "the node's health check reads the log", "expires": "2026-03-01"}
    assert judge_situation({"config.waivers": [waiver]}).status("GPU004") is Status.UNKNOWN


def test_a_rule_that_may_not_be_waived_stays_unknown(judge_situation):
    waiver = {"code": "DST002", "reason": "we have never seen it fail", "expires": "2026-03-01"}
    judged = judge_situation(TWO | {"facts.distributed": None, "config.waivers": [waiver]})
    assert judged.status("DST002") is Status.UNKNOWN
