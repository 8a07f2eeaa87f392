"""Fine-tuning against a peer: means and ratios of the sides, and scores over the pretrainings."""

from __future__ import annotations

import fine_tuning
import glue_small
import pytest


def rows(*tasks: str) -> dict[glue_small.Point, dict[str, float]]:
    return {
        glue_small.Point(task, side, seed): {"mcc": base + seed / 100, "accuracy": base}
        for task in tasks
        for side, base in (("ours", 0.4), ("peer", 0.3))
        for seed in glue_small.SEEDS
    }


def test_the_difference_of_a_task_is_over_the_pretrainings() -> None:
    found = glue_small.report(["cola", "rte"], rows("cola", "rte"))
    assert found["mean"]["difference"]["mean"] == pytest.approx(0.1)
    assert found["tasks"]["cola"]["ours"]["scores"] == pytest.approx([0.4, 0.41, 0.42])
    assert found["mean"]["ours"]["scores"] == pytest.approx([0.4, 0.405, 0.41])


def test_a_task_counts_once_all_models_have_it() -> None:
    found = rows("cola", "rte")
    del found[glue_small.Point("rte", "peer", 2)]
    assert glue_small.complete(["cola", "rte", "mrpc"], found) == ["cola"]


def test_a_task_starts_once_its_model_is_there() -> None:
    left = list(glue_small.points(["cola", "rte"]))
    found = glue_small.ready(left, {"ours": 2, "peer": 0})
    assert found == [glue_small.Point(task, "ours", seed) for task in ("cola", "rte") for seed in (0, 1)]


def test_ratios_of_times_are_of_the_means() -> None:
    def runs(*seconds: float) -> list[dict[str, float]]:
        return [{"accuracy": 0.9, "seconds": each, "seconds_of_steps": each / 2} for each in seconds]

    found = fine_tuning.compared({"ours": runs(10, 20), "peer": runs(20, 40), "peer without cuDNN": runs(16)})
    for key in fine_tuning.TIMES:
        assert found[f"{key}, ours / peer"] == 0.5
        assert found[f"{key}, ours / peer without cuDNN"] == 0.938
    assert fine_tuning.ratio_to_fastest(found) == 0.938
    assert found["ours"]["accuracy_std"] == 0
