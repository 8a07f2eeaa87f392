"""This trainer as a contender: `python -m peers.own_arm RESOLVED.json`.

A step includes what a run does between two steps.
"""

from __future__ import annotations

import sys
from pathlib import Path

from neobert.bench.arm import Arm
from neobert.train import read_config
from peers.turn_taking import TurnTaker


def main() -> None:
    path = Path(sys.argv[1])
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    arm = Arm(read_config(path), "own", folder)
    progress = arm.trainer.progress
    player = TurnTaker(lambda: progress.tokens_total, len(arm.trainer.task.backbone.blocks), is_peer=False)
    steps = player.begin()
    while True:
        arm.warm_up(steps)
        steps = player.steps_ended(steps)


if __name__ == "__main__":
    main()
