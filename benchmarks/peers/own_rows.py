"""Microbatches of a run, for a peer: `python -m peers.own_rows RESOLVED.json COUNT OUT.pt`.

A row has the tokens of a microbatch as this trainer packs them, the lengths of its segments (padding at the
end is one too), and labels at the place of their own token, as transformers' losses take them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from neobert.bench.arm import Arm
from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.train import read_config


def row_of(batch: Microbatch) -> dict[str, Any]:
    assert batch.cu_seqlens is not None
    lengths = batch.cu_seqlens.diff()
    return {
        "input_ids": batch.input_ids.cpu(),
        "labels": torch.cat([torch.tensor([IGNORED]), batch.labels.cpu()[:-1]]),
        "seq_lengths": lengths[lengths > 0].tolist(),
        "num_tokens": batch.num_tokens,
    }


def main() -> None:
    resolved, count, output = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    folder = resolved.with_suffix("")
    folder.mkdir(exist_ok=True)
    arm = Arm(read_config(resolved), "own", folder)
    torch.save([row_of(next(arm.trainer.batches)) for _ in range(count)], output)
    arm.close()


if __name__ == "__main__":
    main()
