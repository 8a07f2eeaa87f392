"""Faults planted in the trainer, each seen by the check that is there for it; without them the run passes."""

import json
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from neobert.data.batches.windows import Cursor
from neobert.families.neobert import build as family
from neobert.objectives.tokens import TokenObjective
from neobert.parallel import world
from neobert.rehearsal import observers
from neobert.tasks.token_task import TokenData
from neobert.training.checkpoint import restore, save
from neobert.training.loop import assembly, steps
from profiles.registry import resolve_run
from tests.rehearsal.conftest import judge_rehearsal
from validators.finding import Level


def test_a_sound_run_passes_every_check(healthy):
    assert healthy.failed == set()
    judged = {code for code, check in healthy.checks.items() if check.status == "pass"}
    assert judged >= {
        "CFG004",
        "PRE003",
        "ATT002",
        "CKP006",
        "CKP009",
        "SCH002",
        "SCH003",
        "NUM005",
        "DAT006",
    }
    assert judged >= {"TEL001", "TEL002", "TSK006"}


def test_a_device_that_is_none_is_skipped_with_its_reason(healthy):
    for code in ("PRF001", "PRF002", "MEM002", "MEM003"):
        assert healthy.checks[code].status == "skip"
        assert healthy.message(code) == "the run has no profile that requires a GPU"


def test_bf16_behind_a_bf16_config(rehearsal):
    sound = rehearsal(trainer={"mixed_precision": "bf16"})
    assert sound.failed == set()
    assert set(sound.facts.precision.product_flops) == {"bfloat16"}


def test_fp32_behind_a_bf16_config_is_seen(rehearsal, monkeypatch):
    monkeypatch.setitem(world.AUTOCAST, "bfloat16", "no")
    found = rehearsal(trainer={"mixed_precision": "bf16"})
    assert found.failed == {"PRE003"}
    assert "matrix products use float32 100%" in found.message("PRE003")


def test_a_schedule_that_counts_microbatches(rehearsal, monkeypatch):
    update = steps.update

    def update_and_count_another(trainer, last_batch):
        update(trainer, last_batch)
        trainer.scheduler.step()

    monkeypatch.setattr(steps, "update", update_and_count_another)
    assert "SCH002" in rehearsal().failed


def test_a_loss_that_is_a_mean_of_means(rehearsal, monkeypatch):
    def accumulate(trainer, batches, num_targets):
        total = torch.zeros((), dtype=torch.float64)
        for batch in batches:
            loss_sum = trainer.module(**trainer.task.inputs(batch, trainer.world.device))
            (loss_sum / batch.num_targets / len(batches)).backward()
            total += loss_sum.detach()
        return total

    monkeypatch.setattr(steps, "accumulate", accumulate)
    assert rehearsal().failed == {"SCH003"}


def test_a_resume_that_forgets_the_generators(rehearsal, monkeypatch):
    monkeypatch.setattr(restore, "restore_random_state", lambda packed: None)
    found = rehearsal()
    assert found.failed == {"CKP009"}
    assert "random generators" in found.message("CKP009")


def test_a_resume_that_forgets_where_it_was_in_the_data(rehearsal, monkeypatch):
    resumed_progress = assembly.resumed_progress

    def forgetful(*arguments, **more):
        progress = resumed_progress(*arguments, **more)
        progress.cursor = Cursor()
        return progress

    monkeypatch.setattr(assembly, "resumed_progress", forgetful)
    found = rehearsal()
    assert found.failed == {"CKP009"}
    assert "differ in data" in found.message("CKP009")


def test_a_moment_that_comes_back_as_zero(rehearsal, monkeypatch):
    take = restore.set_optimizer_state

    def lossy(model, optimizer, tensors):
        next(each for name, each in tensors.items() if name.startswith("exp_avg_sq/")).zero_()
        take(model, optimizer, tensors)

    monkeypatch.setattr(restore, "set_optimizer_state", lossy)
    found = rehearsal()
    assert found.failed == {"CKP006", "CKP009"}
    assert "optimizer/exp_avg_sq/" in found.message("CKP006")


@pytest.mark.parametrize(("momentum", "codes"), [(0.9, {"CFG004"}), (0.95, set())])
def test_a_key_that_nothing_reads(rehearsal, momentum, codes):
    found = rehearsal(optimizer={"name": "adamw", "muon_momentum": momentum})
    assert found.failed == codes
    assert [finding.path for finding in found.findings if finding.code == "CFG004"] == (
        ["optimizer.muon_momentum"] if codes else []
    )


def test_mib_that_are_no_mib(rehearsal, monkeypatch):
    memory_fields = observers.memory_fields

    def in_millions(device):
        reported = memory_fields(device)
        return reported | {"host_rss_mib": reported["host_rss_mib"] * 2**20 // 10**6}

    monkeypatch.setattr(observers, "memory_fields", in_millions)
    assert rehearsal().failed == {"TEL001"}


@pytest.mark.parametrize(
    ("save_steps", "save_limit_s", "failed"),
    [(1, 60.0, {"CKP011"}), (1000, 60.0, set()), (1000, 0.5, {"TEL004"})],
)
def test_a_slow_disk(rehearsal, monkeypatch, save_steps, save_limit_s, failed):
    """The rehearsal waits for its save before it is killed, and goes on from it."""
    publish = save.publish

    def publish_slowly(*arguments, **more):
        time.sleep(0.8)
        return publish(*arguments, **more)

    monkeypatch.setattr(save, "publish", publish_slowly)
    found = rehearsal(trainer={"save_steps": save_steps}, watchdog={"save_limit_s": save_limit_s})
    assert found.failed == failed
    assert found.facts.save_s > 0.7
    assert found.facts.resumes[0].start == found.facts.resumes[0].expected_start


def test_a_rate_that_moves_nothing(rehearsal):
    found = rehearsal(optimizer={"lr": 1e-10})
    assert found.failed == {"NUM005"}


def twice(text, folder):
    """The text, every document of it two times."""
    documents = Path(text["path"]).read_text(encoding="utf-8").splitlines()
    path = folder / "twice.jsonl"
    path.write_text("\n".join([*documents, *documents]), encoding="utf-8")
    return {"path": str(path), "cache_dir": str(folder / "cache")}


def test_an_evaluation_on_what_is_trained_on(rehearsal, text, tmp_path):
    found = rehearsal(dataset=twice(text, tmp_path))
    assert found.failed == {"DAT006"}
    assert found.facts.overlap.shared_share == 1.0
    assert found.facts.evaluation.microbatch_s > 0


@pytest.fixture
def one_long_document(text, tmp_path):
    """Short documents, and one at the very end that fills the whole context."""
    documents = Path(text["path"]).read_text(encoding="utf-8").splitlines()
    words = " ".join(json.loads(line)["text"] for line in documents).split()
    short = [json.dumps({"text": " ".join(words[i : i + 4])}) for i in range(0, 600, 4)]
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join([*short, json.dumps({"text": " ".join(words[:30])})]), encoding="utf-8")
    return {"path": str(path), "cache_dir": str(tmp_path / "cache")}


@pytest.mark.parametrize(("room", "outcome"), [(100, "no room"), (128, "")])
def test_one_very_long_document_is_met_before_the_first_step(
    first_session, monkeypatch, one_long_document, room, outcome
):
    """A device with room for so many padded tokens: the batches at the head of the text take half of them."""
    forward = TokenObjective.forward

    def within_room(self, num_targets, labels, **inputs):
        if labels.numel() > room:
            raise torch.OutOfMemoryError(f"no room for {labels.numel()} tokens")
        return forward(self, num_targets, labels, **inputs)

    monkeypatch.setattr(TokenObjective, "forward", within_room)
    found = first_session(dataset=one_long_document, datacollator={"pack_sequences": False})
    assert outcome in found.facts.out_of_memory
    assert bool(found.facts.out_of_memory) == bool(outcome)
    run = resolve_run("a100-prod")
    _, checks = judge_rehearsal(run, found.facts, (Level.STATIC,))
    assert checks["MEM001"].status == ("fail" if outcome else "pass")
    if outcome:
        assert "running the worst-case microbatch: no room for 128 tokens" in checks["MEM001"].message
        assert not found.facts.schedule  # no step was done
        assert found.checks["SCH002"].status == "unknown"


def test_a_mask_beside_packed_documents(first_session, monkeypatch):
    """A library that reads the mask, and not the boundaries, lets every document hear the others."""
    has_mask = observers.has_mask_with_packing
    inputs = TokenData.inputs
    masked = []

    def with_mask(self, batch, device):
        given = inputs(self, batch, device)
        return given | {"attention_mask": torch.ones_like(given["input_ids"])} if masked else given

    def look(trainer):
        masked.append(True)
        try:
            return has_mask(trainer)
        finally:
            masked.clear()

    monkeypatch.setattr(TokenData, "inputs", with_mask)
    monkeypatch.setattr(observers, "has_mask_with_packing", look)
    found = first_session()
    _, checks = judge_rehearsal(resolve_run("cpu-demo"), found.facts, (Level.STATIC,))
    assert checks["ATT003"].status == "fail"


def test_no_mask_beside_packed_documents(healthy):
    _, checks = judge_rehearsal(resolve_run("cpu-demo"), healthy.facts, (Level.STATIC,))
    assert checks["ATT003"].status == "pass"


def test_another_kernel_than_was_resolved(rehearsal, monkeypatch):
    resolve = family.resolve_step_kernels

    def claims(*arguments):
        return replace(resolve(*arguments), attention="torch_varlen")

    monkeypatch.setattr(family, "resolve_step_kernels", claims)
    found = rehearsal()
    assert found.failed == {"ATT002"}
    assert "torch_varlen was resolved, but block 0 ran sdpa" in found.message("ATT002")


@pytest.fixture
def labelled(text, tmp_path):
    """Texts with a score, which one word of them decides, and the sections of a run that learns it."""
    draw, rows = random.Random(3), []
    for number in range(150):
        score = draw.choice((0.0, 2.0, 5.0))
        words = draw.choices(("red", "film", "tale", "with", "song"), k=draw.randint(2, 9))
        rows.append({"id": number, "text": " ".join([*words, f"s{score:g}"]), "score": score})
    path = tmp_path / "scores.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return {
        "task": "classification",
        "classification": {"problem": "regression", "label_column": "score"},
        "optimizer": {"lr": 1e-3},  # the head begins at the mean: at 1e-2 the loss of a batch no longer falls
        "dataset": {
            "path": str(path),
            "cache_dir": str(tmp_path / "cache"),
            "long_documents": "truncate",
            "eval_samples": 20,
        },
        # The plan counts the steps of the epochs; the rehearsal keeps to them and never stops early.
        "trainer": {
            "max_epochs": 4,
            "metric_for_best_model": "eval/pearson",
            "early_stopping_patience": 1,
        },
    }


def test_a_task_with_labels_of_texts_is_rehearsed_whole(rehearsal, labelled):
    found = rehearsal(**labelled)
    assert found.failed == set()
    assert {answer.kind for answer in found.facts.answers} == {
        "isolation", "bidirectional", "equality", "positions", "different", "same", "learned",
    }  # fmt: skip
    assert found.facts.accumulation.relative_difference < 1e-5
    assert found.facts.accumulation.num_targets[0] > found.facts.accumulation.num_targets[1] > 0
    assert found.facts.worst_case.num_targets == found.facts.worst_case.num_segments
    assert len(found.facts.schedule) == 28
