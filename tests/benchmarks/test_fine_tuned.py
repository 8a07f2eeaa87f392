"""Fine-tuning against a peer: means and ratios of the sides."""

from __future__ import annotations

import fine_tuning


def test_ratios_of_times_are_of_the_means():
    def runs(*seconds: float) -> list[dict[str, float]]:
        return [{"accuracy": 0.9, "seconds": each, "seconds_of_steps": each / 2} for each in seconds]

    found = fine_tuning.compared({"ours": runs(10, 20), "peer": runs(20, 40), "peer without cuDNN": runs(16)})
    for key in fine_tuning.TIMES:
        assert found[f"{key}, ours / peer"] == 0.5
        assert found[f"{key}, ours / peer without cuDNN"] == 0.938
    assert fine_tuning.ratio_to_fastest(found) == 0.938
    assert found["ours"]["accuracy_std"] == 0
