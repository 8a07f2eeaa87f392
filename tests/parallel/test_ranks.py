"""Two ranks against one: the same microbatches a step give the same losses, gradients and weights."""

import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.e2e

MODES = ("replicated", "fsdp2")
PLAIN: dict[str, Any] = {}
TIED = {"kernels": "fused", "tied": True}
RECOMPUTED = {"padded": True, "backend": "eager", "recompute": True}
IN_REGIONS = {"kernels": "triton", "backend": "eager"}
BEHIND = {"kernels": "fused", "behind": True}
FAULTY = {"fault": "mean of each rank"}
ALONE = [PLAIN, TIED, RECOMPUTED, IN_REGIONS, BEHIND]
SHARED = [{**options, "mode": mode} for options in [*ALONE, FAULTY] for mode in MODES]
PAIRS = {"pairs": True}
MICROBATCHES = 2
REPLICAS = [
    {"mode": "fsdp2", "replicas": 2, "reshards": reshards, **options}
    for options in (PLAIN, BEHIND)
    for reshards in (False, True)
]


@pytest.fixture(scope="module")
def seen(filled_once, warm_python):
    """Say what came of a run; all of one rank happen in one process, all of two in another pair."""
    reports = {}
    for num_ranks, runs in ((1, [*ALONE, PAIRS]), (2, SHARED), (4, [*REPLICAS, REPLICAS[1] | PAIRS])):
        launched = partial(launch, warm_python, num_ranks, list(map(with_traced_backward, runs)))
        folder = filled_once(f"ranks{num_ranks}", launched)
        for number, options in enumerate(runs):
            reports[num_ranks, json.dumps(options, sort_keys=True)] = torch.load(folder / f"{number}.pt")
    return lambda num_ranks, **options: reports[num_ranks, json.dumps(options, sort_keys=True)]


def with_traced_backward(options: dict[str, Any]) -> dict[str, Any]:
    """Trace the backward pass too where hooks gather and free parts: that takes three times as long."""
    return options | {"backend": "aot_eager"} if options == IN_REGIONS | {"mode": "fsdp2"} else options


def launch(python: str, num_ranks: int, runs: list[dict[str, Any]], folder: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    command = [python, *(torchrun if num_ranks > 1 else []), "-m", "tests.parallel.ranks"]
    ended = subprocess.run(
        [*command, str(folder), json.dumps(runs)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": python},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ended.returncode, ended.stderr


@pytest.mark.parametrize("options", ALONE, ids=["plain", "tied", "rows", "regions", "behind"])
@pytest.mark.parametrize("mode", MODES)
def test_two_ranks_train_as_one(seen, mode, options):
    assert_equal(seen(2, mode=mode, **options), seen(1, **options))


@pytest.mark.parametrize("options", REPLICAS, ids=["kept", "freed", "behind", "behind, freed"])
def test_two_replicas_of_two_shards_train_as_one_rank(seen, options):
    alone = {name: value for name, value in options.items() if name in BEHIND}
    assert_equal(seen(4, **options), seen(1, **alone))
    assert 0.5 <= seen(4, **options)["held"] / seen(1)["held"] < 0.51


def test_pairs_on_two_replicas_of_two_shards_have_the_gradients_of_one_rank(seen):
    alone, shared = seen(1, **PAIRS), seen(4, **REPLICAS[1], **PAIRS)
    assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-6)
    for name, gradient in alone["gradients"].items():
        torch.testing.assert_close(shared["gradients"][name], gradient, rtol=1e-4, atol=1e-6)


def assert_equal(shared, alone):
    assert shared["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert shared["norms"] == pytest.approx(alone["norms"], rel=1e-5)
    assert shared["weight_norms"] == pytest.approx(alone["weight_norms"], rel=1e-5)
    for name, gradient in alone["gradients"].items():
        torch.testing.assert_close(shared["gradients"][name], gradient, rtol=1e-4, atol=1e-6)
    for name, weight in alone["ended"].items():
        torch.testing.assert_close(shared["ended"][name], weight, rtol=1e-4, atol=1e-5)
    assert [each[0] for each in shared["scores"]] == pytest.approx([each[0] for each in alone["scores"]])
    assert [each[1] for each in shared["scores"]] == [each[1] for each in alone["scores"]]


@pytest.mark.parametrize("mode", MODES)
def test_ranks_begin_with_the_weights_of_the_first_and_stay_equal(seen, mode):
    shared = seen(2, mode=mode)
    assert shared["agree"] == [True, True]
    for name, weight in seen(1)["began"].items():
        assert torch.equal(shared["began"][name], weight)


def test_parts_are_half_of_the_whole(seen):
    whole = seen(1)["held"]
    assert seen(2, mode="replicated")["held"] == whole
    assert seen(2, mode="fsdp2")["held"] < 0.51 * whole


def split_at_microbatches(calls):
    parts: list[list[str]] = [[]]
    for call in calls:
        if call == "microbatch":
            parts.append([])
        else:
            parts[-1].append(call)
    return parts


def test_replicas_send_gradients_once_a_step(seen):
    for step in seen(2, mode="replicated")["sent"]:
        *early, last = split_at_microbatches(step)
        assert len(early) == MICROBATCHES
        assert not any("allreduce" in call for part in early for call in part)
        assert any("allreduce" in call for call in last)


def test_parts_are_gathered_once_and_reduced_once_a_step(seen):
    num_units = 6  # three blocks, embedding, decoder, and what is left: the last norm
    for step in seen(2, mode="fsdp2")["sent"]:
        before, first, last = split_at_microbatches(step)
        gathers = [call for call in (*before, *first) if "allgather" in call]
        assert len(gathers) == len(before) + len(first) == num_units
        assert sum("reduce_scatter" in call for call in last) == num_units
        assert not any("allgather" in call for call in last)


def test_parts_exchanged_behind_the_step_are_sent_in_one_piece(seen):
    for step in seen(2, mode="fsdp2", **BEHIND)["sent"]:
        sent = [call for call in step if "allgather" in call or "reduce_scatter" in call]
        assert ["allgather" in call for call in sent] == [True, False]


@pytest.mark.parametrize("mode", MODES)
def test_blocks_share_their_graphs(seen, mode):
    """Recomputed or not; embedding, first block, other blocks, and that without gradients too; the loss."""
    assert seen(2, mode=mode, **RECOMPUTED)["graphs"] in (1, 2)  # torch 2.11 needs one less
    assert seen(2, mode=mode, **IN_REGIONS)["graphs"] == 7
    assert not seen(2, mode=mode, **IN_REGIONS)["breaks"]


@pytest.mark.parametrize("mode", MODES)
def test_a_mean_of_each_rank_is_caught(seen, mode):
    alone, wrong = seen(1), seen(2, mode=mode, **FAULTY)
    apart = [(alone["gradients"][name] - wrong["gradients"][name]).norm() for name in alone["gradients"]]
    assert max(apart) > 0.1 * alone["norms"][0]
