"""Distributed rules: agreement of a node's ranks on config, code, collectives, weights and loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from neobert.plan import Plan
from neobert.plurals import counted
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import CannotTellError, Violations, require_group, rule
from validators.rules.gpu_speed import slowest_link

if TYPE_CHECKING:
    from validators.facts_run import CollectiveFacts, DistributedFacts, ParameterFacts

PATH = "distributed.nproc_per_node"
DRILL_LIMIT_S = 10.0
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
LINK_SHARE = 0.4

Value = TypeVar("Value")


def _why_no_ranks(run: ResolvedRun, plan: Plan) -> str:
    return "" if run.config.distributed.nproc_per_node > 1 else "each node runs one process"


def _why_no_gpu_ranks(run: ResolvedRun, plan: Plan) -> str:
    reason = "" if _needs_gpus(run) else "the run has no profile that requires a GPU"
    return _why_no_ranks(run, plan) or reason


def _require_distributed(run: ResolvedRun, facts: Facts) -> DistributedFacts:
    """Return the measurements of the ranks. Raises CannotTellError if ranks or required GPUs were missing."""
    distributed = require_group(facts.distributed)
    if distributed.absent:
        raise CannotTellError(f"{_format_ranks(distributed.absent)} did not start, so nothing was measured")
    if _needs_gpus(run) and distributed.backend != "nccl":
        raise CannotTellError("the ranks ran on CPUs, but the profile requires GPUs")
    return distributed


def _needs_gpus(run: ResolvedRun) -> bool:
    return run.device == "cuda"


def _format_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


ranks_rule = partial(
    rule,
    severity=Severity.FAIL,
    level=Level.DISTRIBUTED,
    needs=("distributed",),
    waivable=False,
    inapplicable=_why_no_ranks,
)


@ranks_rule("DST001", "ranks-that-differ")
def ranks_that_differ(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Ranks with a different config, different code or different versions.

    ## What it does
    Each rank of this node hashes the config that it read and every source file of the trainer that it would
    import, and reports its versions of Python, torch, CUDA, NCCL, transformers and accelerate. Ranks that
    differ from the majority are reported; the config is also compared with the run's own.

    ## Why is this bad?
    Ranks that run different code average gradients of different functions, without any error.

    ## Example
    ```text
    rank 3 has torch 2.11.0, the others 2.13.0
    ```

    ## Use instead
    ```text
    use one environment for all ranks, on a shared file system or in one image
    ```
    """
    distributed = require_group(facts.distributed)
    configs = {rank.rank: rank.config_digest for rank in distributed.ranks}
    for rank in _ranks_that_differ(configs, run.digest):
        message = f"rank {rank} has a different config than the run"
        yield Violation(PATH, message, "start all ranks with the same run file")
    code = {rank.rank: rank.code_digest for rank in distributed.ranks}
    for rank in _ranks_that_differ(code, _most_common_value(code)):
        message = f"rank {rank} runs different code from most ranks"
        yield Violation(PATH, message, "install one version of the project for all ranks")
    yield from _differing_versions({rank.rank: rank.versions for rank in distributed.ranks})


def _differing_versions(reported: Mapping[int, Mapping[str, str]]) -> Iterator[Violation]:
    for name in sorted({name for versions in reported.values() for name in versions}):
        values = {rank: versions.get(name, "none") for rank, versions in reported.items()}
        usual = _most_common_value(values)
        for rank in _ranks_that_differ(values, usual):
            message = f"rank {rank} has {name} {values[rank]}, the others {usual}"
            yield Violation(PATH, message, "start all ranks in the same environment")


def _most_common_value(reported: Mapping[int, Value]) -> Value:
    return Counter(reported.values()).most_common()[0][0]


def _ranks_that_differ(reported: Mapping[int, Value], usual: Value) -> list[int]:
    return [rank for rank, value in sorted(reported.items()) if value != usual]


@ranks_rule("DST002", "wrong-collective")
def wrong_collective(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A collective that returns a wrong result.

    ## What it does
    Runs all-reduce and all-gather on known integers in float32, bfloat16 and int64, from one element to
    256 MiB on GPUs, and compares every element. Rank r contributes r + 1, so the sum over N ranks is
    N (N + 1) / 2. Names the rank whose contribution the others receive incorrectly.

    ## Why is this bad?
    A link or a memory that flips bits corrupts every gradient on every rank, and the loss only falls more
    slowly.

    ## Example
    ```text
    all_reduce of 1,021 bfloat16: wrong at ranks 0, 1; the contribution of rank 1 is received incorrectly
    ```

    ## Use instead
    ```text
    use the other devices of the node until this one has been checked
    ```
    """
    distributed = _require_distributed(run, facts)
    if not distributed.collectives:
        raise CannotTellError("no collective was tested")
    wrong = [case for case in distributed.collectives if case.wrong_at]
    if wrong:
        senders = sorted({sender for case in wrong for sender in case.wrong_from})
        culprit = (
            f"the contribution of {_format_ranks(senders)} is received incorrectly"
            if senders
            else "the error cannot be attributed to one rank"
        )
        message = f"{'; '.join(map(_format_collective, wrong[:3]))}; {culprit}"
        yield Violation(
            PATH, message, "exclude the device with CUDA_VISIBLE_DEVICES, and have the device checked"
        )


def _format_collective(case: CollectiveFacts) -> str:
    return f"{case.operation} of {case.num_elements:,} {case.dtype}: wrong at {_format_ranks(case.wrong_at)}"


@rule(
    "DST003",
    "slow-links",
    severity=Severity.WARN,
    level=Level.DISTRIBUTED,
    needs=("distributed", "gpu_health"),
    inapplicable=_why_no_gpu_ranks,
)
def slow_links(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """GPUs that exchange gradients at a rate far below the bandwidth of their links.

    ## What it does
    Compares the bus bandwidth of a 256 MiB all-reduce with 40 % of the one-way bandwidth of the slowest GPU's
    links: 25 GB/s per NVLink, or its PCIe lanes. Warns if GPUs have no peer-to-peer access.

    ## Why is this bad?
    A missing bridge, a slot with half its lanes or disabled peer-to-peer access multiplies the communication
    time of every step without any error.

    ## Example
    ```text
    the bus bandwidth of an all-reduce is 12.1 GB/s, but 18 NVLinks provide 450 GB/s
    ```

    ## Use instead
    ```text
    nvidia-smi topo -m and nvidia-smi nvlink --status show the links
    ```
    """
    distributed = _require_distributed(run, facts)
    hint = "run `nvidia-smi topo -m` to see how the GPUs are connected"
    if distributed.has_peer_access is False:
        message = "no peer-to-peer access between the GPUs: gradients go through host memory"
        yield Violation(PATH, message, hint, Severity.WARN)
    link = slowest_link((facts.gpu_health or ())[: distributed.world_size])
    if link is None or distributed.bus_bytes_per_s is None:
        raise CannotTellError("the driver does not report how the GPUs are connected")
    name, bytes_per_s = link
    if distributed.bus_bytes_per_s < LINK_SHARE * bytes_per_s:
        reached = f"the bus bandwidth of an all-reduce is {distributed.bus_bytes_per_s / 1e9:.1f} GB/s"
        provided = (
            f"{name} provide {bytes_per_s / 1e9:.0f} GB/s (at least {LINK_SHARE:.0%} of it is expected)"
        )
        message = f"{reached}, but {provided}"
        yield Violation(PATH, message, hint)


@ranks_rule("DST004", "absent-rank")
def absent_rank(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A rank that does not start, or a missing rank that the others do not detect.

    ## What it does
    Every rank checks in; a rank that has not within 25 seconds is reported by the others. Then the last
    rank deliberately does not check in, and the others must report it, and only it, within 10 seconds.

    ## Why is this bad?
    Ranks that wait for a missing one time out after half an hour, with the name of the collective but not of
    the rank.

    ## Example
    ```text
    rank 3 did not check in within 25 s
    ```

    ## Use instead
    ```text
    check the log of that rank and its device (nvidia-smi), or exclude it: distributed.nproc_per_node
    ```
    """
    distributed = require_group(facts.distributed)
    if distributed.absent:
        message = f"{_format_ranks(distributed.absent)} did not check in within {distributed.patience_s:g} s"
        yield Violation(PATH, message, "check device, memory and imports of that rank in its log")
        return
    last = (distributed.world_size - 1,)
    hint = "check that all ranks can reach the rendezvous store"
    if distributed.drill_absent != last:
        named = _format_ranks(distributed.drill_absent) if distributed.drill_absent else "no rank"
        message = f"{_format_ranks(last)} deliberately did not check in, but the others reported {named}"
        yield Violation(PATH, message, hint)
    elif distributed.drill_s > DRILL_LIMIT_S:
        message = f"detecting a missing rank took {distributed.drill_s:.1f} s (limit {DRILL_LIMIT_S:g} s)"
        yield Violation(PATH, message, hint)


@ranks_rule("DST005", "diverging-replicas")
def diverging_replicas(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Ranks with different weights.

    ## What it does
    Hashes all weights of a small model of the run's type on each rank: initially, after the run's own
    preparation, after an optimizer step, and after saving, overwriting and loading them. During training a
    run compares the replicas of its weights, or of each shard, at every save; it ends with this code if they
    differ.

    ## Why is this bad?
    Gradients are averaged, weights are not. Replicas that start with different weights stay different, and
    the checkpoint holds the weights of one rank.

    ## Example
    ```text
    after a resume: the weights of rank 1 differ from the weights of most ranks
    ```

    ## Use instead
    ```text
    one file system from which every rank reads the same checkpoint
    ```
    """
    distributed = _require_distributed(run, facts)
    if not distributed.parameters:
        raise CannotTellError("the weights of the test model were not compared")
    for moment in distributed.parameters:
        for rank in _ranks_with_other_digest(moment):
            message = f"{moment.moment}: the weights of rank {rank} differ from the weights of most ranks"
            yield Violation(PATH, message, f"check the files that rank {rank} reads, then its device")


def _ranks_with_other_digest(moment: ParameterFacts) -> list[int]:
    digests = dict(enumerate(moment.digests))
    return _ranks_that_differ(digests, _most_common_value(digests))


@ranks_rule("DST006", "loss-of-other-ranks")
def loss_of_other_ranks(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A loss or gradient norm that depends on the number of ranks.

    ## What it does
    Computes one global batch, in shares of unequal size, with the run's objective: over all ranks, and on
    each rank alone. In fp32 the losses must agree to a relative 1e-5 and the gradient norms to 1e-4.

    ## Why is this bad?
    Averaging the means of ranks gives more weight to tokens of ranks with fewer targets. The same file then
    trains different models on one and on two GPUs.

    ## Example
    ```text
    the loss is 5.4102 over 2 ranks and 5.5488 on one
    ```

    ## Use instead
    ```text
    sum the losses, then divide by the global number of targets
    ```
    """
    distributed = _require_distributed(run, facts)
    loss = distributed.loss
    if loss is None:
        raise CannotTellError("the loss of the test model was not computed")
    pairs = (
        ("the loss", loss.distributed_loss, loss.single_loss, LOSS_TOLERANCE),
        ("the gradient norm", loss.distributed_grad_norm, loss.single_grad_norm, GRADIENT_TOLERANCE),
    )
    for name, together, alone, tolerance in pairs:
        if together is None or alone is None:
            hint = "run `neobert-launch validate-gpu` to find the computation that is wrong"
            yield Violation(PATH, f"{name} is not finite", hint)
        elif abs(together - alone) > tolerance * abs(alone):
            message = (
                f"{name} is {together:.6g} over {distributed.world_size} ranks and {alone:.6g} on one "
                f"(tolerance {tolerance:g} of the latter)"
            )
            yield Violation(PATH, message, "check how losses and gradients are reduced over ranks")


@rule("DST007", "replicas-that-do-not-divide", severity=Severity.FAIL, level=Level.STATIC, waivable=False)
def replicas_that_do_not_divide(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Copies of a sharded model that the processes cannot hold.

    ## What it does
    With `distributed.replicas` above 1, requires `distributed.mode: fsdp2`, and processes that divide evenly
    into the replicas, at least two for each.

    ## Why is this bad?
    Each copy is sharded over processes / replicas ranks. With `replicated`, each process has a copy already.

    ## Example
    ```yaml
    distributed:
      nproc_per_node: 8
      mode: fsdp2
      replicas: 3
    ```

    ## Use instead
    ```yaml
    distributed:
      nproc_per_node: 8
      mode: fsdp2
      replicas: 2
    ```
    """
    replicas, world, path = run.config.distributed.replicas, plan.world_size.value, "distributed.replicas"
    if replicas == 1:
        return
    if run.config.distributed.mode != "fsdp2":
        message = f"{path} is {replicas}, but distributed.mode {run.config.distributed.mode} shards nothing"
        yield Violation(path, message, f"set {path} to 1, or distributed.mode to fsdp2")
    elif world % replicas or world == replicas:
        possible = max(each for each in range(1, replicas + 1) if world % each == 0 and each < max(2, world))
        ranks = counted(world, "process", "processes")
        message = f"{ranks} cannot hold {replicas} copies, each sharded over at least 2 of them"
        yield Violation(path, message, f"set {path} to {possible}")
