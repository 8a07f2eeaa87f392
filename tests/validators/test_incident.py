"""The run that this project exists for: a toy in fp32 on two data-centre GPUs for a day, saving nothing."""

import pytest

from validators.finding import Severity

INCIDENT = {
    "trainer.mixed_precision": "fp32",
    "model.hidden_size": "128",
    "model.num_attention_heads": "4",
    "dataset.max_seq_length": "128",
    "trainer.max_steps": "50000",
    "trainer.save_steps": "0",
    "model.attn_backend": "sdpa",
    "trainer.gradient_checkpointing": "false",
}


@pytest.mark.parametrize(("max_steps", "failed"), [(5000, {"PRE001", "CKP001"}), (4999, set())])
@pytest.mark.parametrize("profile", ["gpu", "gpu-smoke"])
def test_no_other_profile_lets_a_long_run_go_without_bf16_and_saves(
    judge_situation, profile, max_steps, failed
):
    """Its steps would take minutes on paper: their number alone asks for bf16 and saves, or a waiver."""
    toy = {
        "profile": profile,
        "config.model.hidden_size": 128,
        "config.model.num_attention_heads": 4,
        "config.dataset.max_seq_length": 128,
        "config.trainer.mixed_precision": "fp32",
        "config.trainer.save_steps": 0,
        "config.trainer.max_steps": max_steps,
    }
    codes = {"PRE001", "CKP001"}

    def of(situation):
        findings = judge_situation(situation).findings
        return {each.code for each in findings if each.severity is Severity.FAIL and not each.waived} & codes

    assert of(toy) == failed
    reason = "a numerical reference in fp32"
    waivers = [{"code": code, "reason": reason, "expires": "2026-02-01"} for code in sorted(codes)]
    assert of(toy | {"config.waivers": waivers}) == set()
    on_cpu = {"profile": "cpu", "config.dataset.name": "x/y", "config.trainer.mixed_precision": "no"}
    assert of(toy | on_cpu) == set()


def test_each_of_its_faults_taken_away_leaves_the_others(judge_situation):
    """The paired control: without any of them the profile passes."""
    assert judge_situation({}).findings == []
    for key in INCIDENT:
        rest = [f"{other}={value}" for other, value in INCIDENT.items() if other != key]
        assert "MOD001" in {finding.code for finding in judge_situation({"overrides": rest}).findings}
