"""A run in parts over two processes, gone on from in parts, whole, on one: or refused with the reason."""

import pytest

from tests.faults.sharded_sessions import CHANGE_AT, CHANGES, END
from tests.faults.sharded_tasks import CLOSE

pytestmark = pytest.mark.e2e

PROBES = ("isolation", "bidirectional", "equality", "positions")


def test_a_run_changes_mode_and_number_of_processes(report, tmp_path):
    found = report("sharded_sessions", tmp_path)
    names = ("full", "broken", "bad", "flipped")
    failed, broken, bad, flipped = (found["codes"].pop(name) for name in names)
    assert {code for codes in found["codes"].values() for code in codes} == {0}
    ranks = {"rng_rank0.safetensors", "rng_rank1.safetensors"}
    assert set(found["files"]["parts on 2"]) >= {"optimizer/__0_0.distcp", "optimizer/__1_0.distcp", *ranks}
    assert "optimizer.safetensors" not in found["files"]["parts on 2"]
    assert set(found["files"]["whole on 2"]) >= {"optimizer.safetensors", *ranks}
    undisturbed = found["undisturbed"]
    changed = {name: found[name] for name in (f"{first}, then {second}" for first, second in CHANGES)}
    for name, losses in (changed | {"killed": found["killed"]["losses"]}).items():
        assert list(losses) == list(undisturbed) == [str(step) for step in range(1, END + 1)]
        for step, loss in losses.items():
            assert loss == pytest.approx(undisturbed[step], rel=1e-5), (name, step)
    evaluations = found["evaluated"]
    assert evaluations == pytest.approx(dict.fromkeys(evaluations, evaluations["undisturbed"]), rel=1e-5)
    # The change says something: a fresh optimizer would not have found this loss again.
    assert undisturbed[str(CHANGE_AT + 1)] != undisturbed[str(CHANGE_AT)]

    killed = found["killed"]
    assert killed["codes"][0] == -9
    assert killed["codes"][1] != 0
    assert killed["left"] == [".tmp", str(CHANGE_AT), "latest"]
    assert killed["latest"] == CHANGE_AT
    assert killed["resumed"] == [0, 0]
    assert killed["after"] == [str(END), str(CHANGE_AT), "latest"]

    assert bad == [4, 4]
    assert not found["files"]["bad"]
    assert "not finite after step 5" in found["log of the good rank"]

    assert flipped == [4, 4]
    assert found["files"]["flipped"] == [str(CHANGE_AT), "latest"]
    assert "[DST005]" in found["log of flipped"]
    assert "replicas of the model differ (ranks 0, 1), and were not saved" in found["log of flipped"]

    assert failed == [4, 4]
    assert found["files"]["full"] == []
    assert "rank 1" in found["log"]
    assert "[CKP004]" in found["log"]

    assert broken == [4, 4]
    assert found["files"]["broken"] == []
    reason = (
        f"checkpoint of step {CHANGE_AT} could not be written: rank 1: ZeroDivisionError: planted [CKP004]"
    )
    assert all(reason in log for log in found["logs of broken"])


def test_checkpoints_load_on_every_number_of_ranks_bit_for_bit(report, tmp_path):
    found = report("pairs_of_ranks", tmp_path)
    saved = [found.pop(name) for name in sorted(found) if name.startswith("saved ")]
    assert len(found) == len(saved) ** 2 == 25
    assert {name: wrong for name, (wrong, _) in found.items() if wrong} == {}
    assert not any(sent for name, (_, sent) in found.items() if "then fsdp2" in name)
    sharded = [each for each in saved if each["files"] != ["model.safetensors"]]
    assert len(sharded) == 3
    assert [each.get("flipped") for each in sharded] == [
        None,
        None,
        "replicas of the model differ (ranks 1, 3)",
    ]
    for each in sharded:
        assert each["files"][0].startswith("model-00001-of-000")
        # Neither start, step, save, evaluation nor resume gathers more than a unit, nor does a rehearsal.
        assert 0 < each["largest"] <= each["rehearsed"] <= 1.1 * each["unit"]
    planted = sharded[0]["planted"]
    assert list(planted) == ["start", "step", "evaluation", "save", "resume"]
    assert all(largest > 2 * sharded[0]["unit"] for largest in planted.values()), planted
    attention, *others = ([each for each in one["answers"] if each["kind"] in PROBES] for one in saved)
    assert [each["kind"] for each in attention] == list(PROBES)
    assert all(each == attention for each in others)


def test_an_adapter_in_parts_is_that_of_one_process(report, tmp_path):
    pytest.importorskip("peft", reason="adapters need the extra lora")
    found = report("sharded_adapters", tmp_path)
    assert set(found["codes"]) == {0}
    alone = found["losses"].pop("one")
    assert alone["6"] < 0.9 * alone["1"]
    for name, losses in found["losses"].items():
        assert losses == pytest.approx(alone, rel=1e-5), name
        limits = {"adapter/adapter_model": 1e-6, "model": 1e-6, "trainer_state/frozen": 0.0}
        assert all(found["differences"][name][file] <= limit for file, limit in limits.items()), name


def test_a_task_in_parts_continues_on_one_process(report):
    """Two of them; `make test-faults` trains every family and task."""
    found = report("sharded_tasks", "bert/answers", "nsa/talks")
    for name, (codes, difference) in found.items():
        assert (codes, difference <= CLOSE) == ([0] * 4, True), name
