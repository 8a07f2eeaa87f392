"""Values exactly at a limit that no config hits by itself: the plan is given them."""

from dataclasses import replace

import pytest

from neobert.plan import Derived
from neobert.plan.derived import Start
from profiles.registry import Requirements, resolve_run
from tests.validators.judging import FACTS
from validators.finding import Severity
from validators.planning import plan_run
from validators.remaining import remaining_in_launch, run_start
from validators.rule import RULES

RUN = resolve_run("a100-prod")
PLAN = plan_run(RUN)
GPU = FACTS.gpus[0]


def violations(code, facts=FACTS, run=RUN, **plan):
    changed = PLAN._replace(**{name: Derived(value, "given") for name, value in plan.items()})
    return list(RULES[code].judge(run, changed, facts))


def with_gpu(**changes):
    return replace(FACTS, gpus=(replace(GPU, **changes),))


def with_scheduler(**changes):
    job = replace(FACTS.scheduler, name="slurm", job_id="17", **changes)
    return replace(FACTS, scheduler=job)


@pytest.mark.parametrize(
    ("tokens", "severities"),
    [(9.999, [None]), (10.0, [Severity.WARN]), (19.999, [Severity.WARN]), (20.0, [])],
)
def test_tokens_per_parameter(tokens, severities):
    found = violations("BUD001", tokens_per_parameter=tokens)
    assert [violation.severity for violation in found] == severities


@pytest.mark.parametrize(("hours", "reported"), [(50.999, "set trainer.max_steps to 1; or "), (51.0, "")])
def test_steps_that_fit_into_the_walltime_are_named_while_there_are_any(hours, reported):
    """At 1,000 steps an hour."""
    run = resolve_run("a100-prod", overrides=["guard.walltime_limit_hours=1", "trainer.max_steps=50000"])
    (violation,) = violations("BUD001", run=run, eta_s=3600 * hours, step_time_s=3.6)
    assert violation.hint == f"{reported}set guard.walltime_limit_hours to 51, or use more devices"


def test_a_tracker_that_cannot_be_reached_is_a_warning():
    tracker = replace(FACTS.tracker, is_offline=False, has_credentials=True, is_reachable=False)
    run = resolve_run("a100-prod", overrides=["trackers=[wandb]"])
    (violation,) = violations("HST004", replace(FACTS, tracker=tracker), run=run)
    assert violation.severity is Severity.WARN


@pytest.mark.parametrize(
    ("tracker", "changes", "count"),
    [
        ("wandb", {}, 1),
        ("wandb", {"is_offline": True}, 0),
        ("wandb", {"is_installed": False}, 1),
        ("tensorboard", {}, 0),
    ],
)
def test_credentials_are_needed_by_wandb_that_is_online(tracker, changes, count):
    sound = {"is_offline": False, "is_installed": True, "packages": {"tensorboard": True}}
    facts = replace(FACTS.tracker, has_credentials=False, **(sound | changes))
    run = resolve_run("a100-prod", overrides=[f"trackers=[{tracker}]"])
    assert len(violations("HST004", replace(FACTS, tracker=facts), run=run)) == count


@pytest.mark.parametrize(
    ("used", "needed", "count"), [(2000, 1.0, 0), (2001, 1.0, 1), (0, 90_000.0, 0), (0, 90_001.0, 1)]
)
def test_memory_in_use_and_free_memory(used, needed, count):
    gpu = with_gpu(memory_total_mib=100_000, memory_used_mib=used)
    assert len(violations("GPU002", gpu, memory_mib=needed)) == count


@pytest.mark.parametrize(("size_mib", "count"), [(4000.0, 0), (4000.1, 1)])
def test_the_lead_of_a_signal(size_mib, count):
    """Three saves of 4,000 MiB at 200 MiB/s take a minute."""
    job = with_scheduler(walltime_left_s=3600.0, signal_lead_s=60.0)
    found = violations("HST005", job, checkpoint_mib=size_mib, eta_s=7200.0)
    assert [violation.severity is None for violation in found] == [bool(count)]


@pytest.mark.parametrize(("left_s", "is_over"), [(-1.0, True), (0.0, True), (1.0, False)])
def test_a_job_ends_with_its_last_second(left_s, is_over):
    (one,) = violations("HST005", with_scheduler(walltime_left_s=left_s, signal_lead_s=60.0), eta_s=60.0)
    assert ("hours ago" in one.message) is is_over


@pytest.mark.parametrize(
    ("profile", "is_step", "severity", "hint"),
    [
        ("a100-prod", True, None, "submit the job to another partition"),
        ("a100-prod", False, None, "start the launcher with srun"),
        ("cpu-demo", True, Severity.WARN, "submit the job to another partition"),
    ],
)
def test_a_preemption_that_is_too_fast_blocks_a_production_run(profile, is_step, severity, hint):
    """Three saves of 4,000 MiB at 200 MiB/s take a minute."""
    fast = with_scheduler(preempt_lead_s=59.9, is_step=is_step)
    (one,) = violations("HST005", fast, run=resolve_run(profile), checkpoint_mib=4000.0)
    assert (one.severity, one.hint.startswith(hint)) == (severity, True)
    for enough in (60.0, None):
        job = with_scheduler(preempt_lead_s=enough, is_step=is_step)
        assert violations("HST005", job, run=resolve_run(profile), checkpoint_mib=4000.0) == []


def test_a_job_that_outlasts_the_run_needs_no_signal():
    exactly = with_scheduler(walltime_left_s=7200.0, signal_lead_s=0.0)
    assert violations("HST005", exactly, eta_s=7200.0) == []
    assert len(violations("HST005", exactly, eta_s=7200.1)) == 1


@pytest.mark.parametrize(("is_known", "severity"), [(False, None), (True, Severity.WARN)])
def test_an_end_that_the_trainer_knows_needs_no_signal(is_known, severity):
    job = with_scheduler(walltime_left_s=3600.0, signal_lead_s=0.0, end_is_known=is_known)
    (one,) = violations("HST005", job, eta_s=7200.0)
    assert one.severity is severity
    assert "its signal comes 0 s before the kill" in one.message


def resumed(facts, step, **changes):
    resume = replace(facts.resume, target="/r/checkpoints/1", exists=True, is_verified=True, step=step)
    return replace(facts, resume=replace(resume, **changes))


@pytest.mark.parametrize(
    ("step", "changes", "count"),
    [
        (0, {}, 1),
        (24_999, {}, 1),
        (25_000, {}, 0),
        (49_999, {"is_verified": False}, 1),
        (50_001, {}, 0),
    ],
)
def test_a_run_that_goes_on_is_judged_by_the_steps_that_are_left(step, changes, count):
    """Two hours are what the job and the launch have, and what half of the 50,000 steps takes."""
    run = resolve_run("a100-prod", (), ("guard.walltime_limit_hours=2", "trainer.max_steps=50000"))
    job = resumed(with_scheduler(walltime_left_s=7200.0, signal_lead_s=0.0), step, **changes)
    for code in ("HST005", "BUD001"):
        found = [one for one in violations(code, job, run, eta_s=14_400.0) if "hours" in one.message]
        assert len(found) == count, code
        rest = "the rest of the run, from step 24,999, takes"
        assert [rest in one.message for one in found] == [step == 24_999] * count
    assert len(violations("BUD001", replace(job, resume=None), run, eta_s=14_400.0)) == 1


def test_nothing_is_left_of_a_run_that_is_at_its_end():
    last = RUN.config.trainer.max_steps
    one_step = remaining_in_launch(RUN, PLAN, resumed(FACTS, last - 1)).eta_s.value
    assert one_step == pytest.approx(PLAN.eta_s.value / last)
    assert remaining_in_launch(RUN, PLAN, resumed(FACTS, last + 1)).eta_s.value == 0


@pytest.mark.parametrize(
    ("resume", "start"),
    [
        (None, Start(30, 20)),
        ({"step": 25, "is_verified": True}, Start(25, 20)),
        ({"step": 15, "is_verified": True, "is_continued": True}, Start(15, 15)),
        ({"step": 25, "is_verified": False}, Start()),
    ],
)
def test_a_verified_checkpoint_counts_before_the_name_of_a_folder(resume, start):
    plan = PLAN._replace(assumptions=replace(PLAN.assumptions, start=Start(30, 20)))
    facts = replace(FACTS, resume=None if resume is None else replace(FACTS.resume, **resume))
    assert run_start(plan, facts) == start


@pytest.mark.parametrize(
    ("step", "is_continued", "count"),
    [(0, False, 1), (25_000, False, 1), (24_999, True, 1), (25_000, True, 0)],
)
def test_a_kind_of_profile_limits_the_steps_of_all_launches_of_a_run(step, is_continued, count):
    """A development run of 48 hours: the half that another run has trained does not count."""
    run = resolve_run("gpu", (), ("trainer.max_steps=50000",))
    facts = resumed(FACTS, step, is_continued=is_continued)
    plan = plan_run(run)._replace(eta_s=Derived(172_800.0, "given"))
    found = [one for one in RULES["CFG005"].judge(run, plan, facts) if "development profile" in one.message]
    assert len(found) == count


@pytest.mark.parametrize(("floor", "count"), [(768.0, 0), (768.1, 1)])
def test_the_ridge(floor, count):
    assert len(violations("MOD001", min_hidden_size=floor)) == count


@pytest.mark.parametrize(("device", "count"), [(100_000.0, 0), (99_999.0, 1)])
def test_predicted_memory(device, count):
    assert len(violations("MEM001", device_memory_mib=device, memory_mib=90_000.0)) == count


@pytest.mark.parametrize(("memory_mib", "count"), [(95 * 1024, 0), (95 * 1024 - 1, 1)])
def test_nominal_memory(memory_mib, count):
    """95 % of 100 GiB."""
    run = replace(RUN, profile=RUN.profile._replace(requires=Requirements(gpu_memory_gib=100.0)))
    assert len(violations("GPU001", with_gpu(memory_total_mib=memory_mib), run)) == count


@pytest.mark.parametrize(("required", "count"), [("GV100", 0), ("T4", 1), ("A100", 1)])
def test_a_card_that_the_table_lacks_is_compared_by_its_name(required, count):
    run = replace(RUN, profile=RUN.profile._replace(requires=Requirements(gpu=required)))
    assert len(violations("GPU001", with_gpu(name="NVIDIA Quadro GV100"), run)) == count
