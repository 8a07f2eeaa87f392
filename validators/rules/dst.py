"""DST: the ranks of a node agree on what runs, on what they send, and on what they compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_run import CollectiveFacts, DistributedFacts, ParameterFacts
from validators.finding import Level, Severity, Violation
from validators.links import slowest_link
from validators.rule import CannotTellError, Violations, rule

PATH = "distributed.nproc_per_node"
DRILL_LIMIT_S = 10.0
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
LINK_SHARE = 0.4

Said = TypeVar("Said")


def _runs_alone(run: ResolvedRun, plan: Plan) -> str:
    return "" if run.config.distributed.nproc_per_node > 1 else "a node has one process"


def _runs_alone_or_on_cpu(run: ResolvedRun, plan: Plan) -> str:
    return _runs_alone(run, plan) or ("" if _needs_gpus(run) else "no profile requires a GPU")


def _met(run: ResolvedRun, facts: Facts) -> DistributedFacts:
    """What the ranks found out together. Raises where some did not come, or came without their GPUs."""
    found = facts.distributed
    assert found is not None
    if found.absent:
        raise CannotTellError(f"{_ranks(found.absent)} did not come, so the others measured nothing")
    if _needs_gpus(run) and found.backend != "nccl":
        raise CannotTellError("the ranks met on processors, and the profile requires GPUs")
    return found


def _needs_gpus(run: ResolvedRun) -> bool:
    return run.device == "cuda"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


@rule(
    "DST001",
    "ranks-that-differ",
    severity=Severity.FAIL,
    level=Level.DISTRIBUTED,
    needs=("distributed",),
    waivable=False,
    inapplicable=_runs_alone,
)
def ranks_that_differ(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Ranks with another config, other code or other versions than the rest.

    ## What it does
    Each rank of this node hashes the config that it read and every source file of the trainer as it would
    import it, and names its versions of Python, torch, CUDA, NCCL, transformers and accelerate. Whoever
    differs from most of them is named; the config is also compared with the run's own.

    ## Why is this bad?
    Ranks that run different code average gradients of different functions. Nothing crashes.

    ## Example
    ```text
    rank 3 has torch 2.11.0, and the others 2.13.0
    ```

    ## Use instead
    ```text
    one environment for all ranks, on a shared file system or in one image
    ```
    """
    found = facts.distributed
    assert found is not None
    own = {rank.rank: rank.config_digest for rank in found.ranks}
    for rank in _others(own, run.digest):
        yield Violation(PATH, f"rank {rank} has another config than the run", "start all ranks from one file")
    code = {rank.rank: rank.code_digest for rank in found.ranks}
    for rank in _others(code, _most_common(code)):
        message = f"rank {rank} has other code than most ranks"
        yield Violation(PATH, message, "install one version of the project for all ranks")
    yield from _differing_versions({rank.rank: rank.versions for rank in found.ranks})


def _differing_versions(said: Mapping[int, Mapping[str, str]]) -> Iterator[Violation]:
    for name in sorted({name for versions in said.values() for name in versions}):
        values = {rank: versions.get(name, "none") for rank, versions in said.items()}
        usual = _most_common(values)
        for rank in _others(values, usual):
            message = f"rank {rank} has {name} {values[rank]}, and the others {usual}"
            yield Violation(PATH, message, "start all ranks in one environment")


def _most_common(said: Mapping[int, Said]) -> Said:
    return Counter(said.values()).most_common()[0][0]


def _others(said: Mapping[int, Said], usual: Said) -> list[int]:
    return [rank for rank, value in sorted(said.items()) if value != usual]


@rule(
    "DST002",
    "wrong-collective",
    severity=Severity.FAIL,
    level=Level.DISTRIBUTED,
    needs=("distributed",),
    waivable=False,
    inapplicable=_runs_alone,
)
def wrong_collective(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A collective that gives another sum than the ranks put in.

    ## What it does
    Adds up and collects known whole numbers over the ranks, in float32, bfloat16 and int64, from one element
    to 256 MiB on GPUs, and compares every element. Rank r brings r + 1, so N ranks have N (N + 1) / 2.
    The rank whose part arrives wrong at the others is named.

    ## Why is this bad?
    A link or a memory that flips bits spoils every gradient of every rank, and the loss only falls slower.

    ## Example
    ```text
    all_reduce of 1,021 bfloat16: wrong at ranks 0, 1; the part of rank 1 arrives wrong
    ```

    ## Use instead
    ```text
    the other devices of the node, until this one was looked at
    ```
    """
    found = _met(run, facts)
    if not found.collectives:
        raise CannotTellError("no collective was tried")
    wrong = [case for case in found.collectives if case.wrong_at]
    if wrong:
        senders = sorted({sender for case in wrong for sender in case.wrong_from})
        named = f"the part of {_ranks(senders)} arrives wrong" if senders else "no single part is wrong"
        message = f"{'; '.join(map(_case, wrong[:3]))}; {named}"
        yield Violation(PATH, message, "leave its device out, and have it looked at")


def _case(case: CollectiveFacts) -> str:
    return f"{case.operation} of {case.num_elements:,} {case.dtype}: wrong at {_ranks(case.wrong_at)}"


@rule(
    "DST003",
    "slow-links",
    severity=Severity.WARN,
    level=Level.DISTRIBUTED,
    needs=("distributed", "gpu_health"),
    inapplicable=_runs_alone_or_on_cpu,
)
def slow_links(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """GPUs that exchange gradients slower than their links allow.

    ## What it does
    Compares the bandwidth of a 256 MiB all-reduce with two fifths of what the links of the slowest GPU carry
    one way: 25 GB/s each NVLink, or its PCIe lanes. Warns where the GPUs cannot read each other's memory.

    ## Why is this bad?
    A missing bridge, a slot with half its lanes or access that is switched off multiplies the time of
    every step's exchange, and no error says so.

    ## Example
    ```text
    12.1 GB/s cross each link, and 18 NVLinks carry 450
    ```

    ## Use instead
    ```text
    nvidia-smi topo -m and nvidia-smi nvlink --status show what is missing
    ```
    """
    found = _met(run, facts)
    if found.has_peer_access is False:
        message = "the GPUs cannot read each other's memory, so gradients cross the host"
        yield Violation(PATH, message, "nvidia-smi topo -m shows how they are connected", Severity.WARN)
    link = slowest_link((facts.gpu_health or ())[: found.world_size])
    if link is None or found.bus_bytes_per_s is None:
        raise CannotTellError("the driver does not tell how the GPUs are connected")
    name, carries = link
    if found.bus_bytes_per_s < LINK_SHARE * carries:
        measured = f"{found.bus_bytes_per_s / 1e9:.1f} GB/s cross each link"
        message = f"{measured}, and {name} carry {carries / 1e9:.0f}"
        yield Violation(PATH, message, "nvidia-smi topo -m shows how they are connected")


@rule(
    "DST004",
    "absent-rank",
    severity=Severity.FAIL,
    level=Level.DISTRIBUTED,
    needs=("distributed",),
    waivable=False,
    inapplicable=_runs_alone,
)
def absent_rank(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A rank that does not come, or one whose absence nobody would notice.

    ## What it does
    Every rank signs a roll; whoever has not signed within 25 seconds is named by the others. Then the last
    rank stays away on purpose, and the others have to name it, and only it, within 10 seconds.

    ## Why is this bad?
    Ranks that wait for one that is gone wait half an hour, and then say which collective it was but not who.

    ## Example
    ```text
    rank 3 did not sign the roll within 25 s
    ```

    ## Use instead
    ```text
    the log of that rank; nvidia-smi, for its device; or distributed.nproc_per_node without it
    ```
    """
    found = facts.distributed
    assert found is not None
    if found.absent:
        message = f"{_ranks(found.absent)} did not sign the roll within {found.patience_s:g} s"
        yield Violation(PATH, message, "see why it does not start: its device, its memory, its imports")
        return
    last = (found.world_size - 1,)
    if found.drill_absent != last:
        named = _ranks(found.drill_absent) if found.drill_absent else "nobody"
        message = f"{_ranks(last)} stayed away on purpose, and the others missed {named}"
        yield Violation(PATH, message, "see whether the ranks reach each other's store")
    elif found.drill_s > DRILL_LIMIT_S:
        message = f"it took {found.drill_s:.1f} s to miss a rank, and {DRILL_LIMIT_S:g} are allowed"
        yield Violation(PATH, message, "see what slows down the ranks' store")


@rule(
    "DST005",
    "diverging-replicas",
    severity=Severity.FAIL,
    level=Level.DISTRIBUTED,
    needs=("distributed",),
    waivable=False,
    inapplicable=_runs_alone,
)
def diverging_replicas(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Ranks whose weights are not the same.

    ## What it does
    Hashes every weight of a small model of the run's kind on each rank: at its start, after the run's own
    preparation, after an optimizer step, and after it was saved, spoiled and loaded again. A run compares its
    own replicas at every save, and warns with this code in rank 0's log (`diverging_replicas`).

    ## Why is this bad?
    Gradients are averaged, weights are not. Replicas that start apart stay apart, and the checkpoint holds
    those of one rank.

    ## Example
    ```text
    after a resume: rank 1 has other weights than most ranks
    ```

    ## Use instead
    ```text
    one file system on which every rank reads the same checkpoint
    ```
    """
    found = _met(run, facts)
    if not found.parameters:
        raise CannotTellError("no model was built")
    for moment in found.parameters:
        for rank in _odd_ranks(moment):
            message = f"{moment.moment}: rank {rank} has other weights than most ranks"
            yield Violation(PATH, message, "see whether it reads the same files and computes alike")


def _odd_ranks(moment: ParameterFacts) -> list[int]:
    digests = dict(enumerate(moment.digests))
    return _others(digests, _most_common(digests))


@rule(
    "DST006",
    "loss-of-other-ranks",
    severity=Severity.FAIL,
    level=Level.DISTRIBUTED,
    needs=("distributed",),
    waivable=False,
    inapplicable=_runs_alone,
)
def loss_of_other_ranks(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A loss or a gradient that depends on how many ranks compute it.

    ## What it does
    Puts one global batch, in shares of unequal size, through the run's objective: over all ranks, and by each
    rank alone. In fp32 the losses have to agree to 1e-5 of their size and the norms of the gradients to
    1e-4.

    ## Why is this bad?
    Averaging the ranks' means weighs a token by how empty its rank's batch was. The same file then trains
    another model on two GPUs than on one.

    ## Example
    ```text
    the loss is 5.4102 over 2 ranks and 5.5488 by one
    ```

    ## Use instead
    ```text
    sums of losses, divided by the global count of targets
    ```
    """
    found = _met(run, facts)
    loss = found.loss
    if loss is None:
        raise CannotTellError("no loss was computed")
    pairs = (
        ("the loss", loss.distributed_loss, loss.single_loss, LOSS_TOLERANCE),
        ("the gradient's norm", loss.distributed_grad_norm, loss.single_grad_norm, GRADIENT_TOLERANCE),
    )
    for name, together, alone, tolerance in pairs:
        if together is None or alone is None:
            yield Violation(PATH, f"{name} is not a finite number", "validate-gpu says what computes wrongly")
        elif abs(together - alone) > tolerance * abs(alone):
            message = f"{name} is {together:.6g} over {found.world_size} ranks and {alone:.6g} by one"
            yield Violation(PATH, message, "see how the ranks' losses and gradients are put together")
