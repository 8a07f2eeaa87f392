"""Under each optimizer a run that was killed ends where the unbroken one does, to the last bit."""

import os
import subprocess
import sys

import pytest

CLIP = {"name": "muonclip", "qk_clip_threshold": 0.002, "qk_clip_interval": 2, "qk_clip_chunk_size": 16}
OPTIMIZERS = {"lion": {"name": "lion", "lr": 1e-3}, "muonclip": CLIP}
"""Muon without the clip is killed in `test_recipe`."""


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_killed_run_goes_on_to_the_last_bit(name, killed_run, exact):
    whole = killed_run(7, optimizer=OPTIMIZERS[name])
    losses = [line["train/loss"] for line in exact(whole) if "train/loss" in line]
    assert losses[-1] < losses[0]


def test_the_clip_cuts_logits_in_packed_and_padded_runs_and_says_what_it_saw(make_run, run, metrics):
    for is_packed in (True, False):
        sections = {"datacollator": {"pack_sequences": is_packed}}
        kept, cut = f"kept-{is_packed}", f"cut-{is_packed}"
        plain = make_run(kept, optimizer=CLIP | {"qk_clip_threshold": 1e6}, **sections)
        clipped = make_run(cut, optimizer=CLIP, **sections)
        run(plain)
        run(clipped)
        seen = [
            [line["train/max_attention_logit"] for line in metrics(each) if "train/loss" in line]
            for each in (plain, clipped)
        ]
        assert seen[1][-1] < 0.5 * seen[0][-1]


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_two_ranks_that_hold_parts_train_as_two_that_hold_all(make_run, exact):
    found = []
    for mode in ("replicated", "fsdp2"):
        ranks = {"distributed": {"nproc_per_node": 2, "mode": mode}}
        run_dir = make_run(mode, optimizer=CLIP, **ranks)
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        command = [*torchrun, "-m", "neobert.train", str(run_dir / "resolved.json")]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        found.append([line["train/loss"] for line in exact(run_dir) if "train/loss" in line])
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[0][-1] < found[0][0]
