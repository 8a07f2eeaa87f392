"""MEM, the part that a rehearsal measures: memory beside its prediction, and whether it grows."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_rehearsal import MemoryFacts
from validators.finding import Level, Severity, Violation
from validators.rehearsed import NEEDS, measured, no_gpu_is_required, rehearsal_of
from validators.rule import Violations, rule

LEAST_RATIO, MOST_RATIO = 0.5, 1.5
MOST_RESERVED = 1.5
GROWTH_STEPS = 50
GROWTH_SHARE = 0.01
PATH = "trainer.per_device_train_batch_size"


def _memory(facts: Facts) -> MemoryFacts:
    return measured(rehearsal_of(facts).memory, facts, "memory of the device")


@rule(
    "MEM002",
    "memory-not-as-predicted",
    severity=Severity.WARN,
    level=Level.REHEARSAL,
    needs=NEEDS,
    inapplicable=no_gpu_is_required,
)
def memory_not_as_predicted(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Memory that is far from what the run should take.

    ## What it does
    Compares the peak of the rehearsal, the device's context included, with the plan's sum of weights,
    gradients, moments, activations, logits and runtime: between half and one and a half of it is as
    predicted. Warns too where the allocator reserved one and a half times what was allocated.

    ## Why is this bad?
    Twice the memory means that something runs in another precision, or that a kernel keeps what it should
    not; half of it, that another model trains. Much reserved and little used is fragmentation, which grows
    until the run dies of it.

    ## Example
    ```text
    66 GiB reserved, 21 GiB allocated: one of 3.1
    ```

    ## Use instead
    ```text
    shapes that stay (datacollator.pack_sequences), expandable segments in PYTORCH_CUDA_ALLOC_CONF
    ```
    """
    memory, predicted = _memory(facts), predicted_mib(plan)
    peak = memory.peak_allocated_mib + memory.context_mib
    if not LEAST_RATIO <= peak / predicted <= MOST_RATIO:
        yield Violation(
            PATH,
            f"{peak:,} MiB at the peak, {peak / predicted:.2f} times the {predicted:,.0f} MiB predicted",
            "compare precision, kernels and sizes with the plan: neobert-launch plan --verbose",
        )
    if memory.peak_reserved_mib >= MOST_RESERVED * memory.peak_allocated_mib:
        yield Violation(
            PATH,
            f"{memory.peak_reserved_mib:,} MiB reserved for {memory.peak_allocated_mib:,} MiB allocated",
            "keep shapes fixed, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )


def predicted_mib(plan: Plan) -> float:
    """Add up the parts of the plan, which stay estimates whatever was measured."""
    parts = (
        plan.weights_mib,
        plan.gradients_mib,
        plan.optimizer_mib,
        plan.activations_mib,
        plan.logits_mib,
        plan.runtime_mib,
    )
    return sum(part.value for part in parts)


@rule(
    "MEM003",
    "memory-grows",
    severity=Severity.WARN,
    level=Level.REHEARSAL,
    needs=NEEDS,
    inapplicable=no_gpu_is_required,
)
def memory_grows(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Memory that more steps take more of, or an allocator that has to try twice.

    ## What it does
    Warns where what is allocated between steps would grow by more than 1 % of the peak in 50 steps, and where
    the allocator had to give its cache back and try again.

    ## Why is this bad?
    A leak of a few MiB a step is invisible in a test and ends the run in an hour. A retry stalls the device,
    and is the last thing before there is no room at all.

    ## Example
    ```text
    losses kept in a list, each with its graph
    ```

    ## Use instead
    ```text
    losses summed on the device without their graph
    ```
    """
    memory = _memory(facts)
    growth = memory.growth_mib_per_step * GROWTH_STEPS
    if growth > GROWTH_SHARE * memory.peak_allocated_mib:
        message = f"what is allocated between steps grows by {growth:,.0f} MiB in {GROWTH_STEPS} steps"
        yield Violation("trainer", message, "look for tensors that are kept from step to step")
    if memory.alloc_retries:
        message = f"the allocator gave its cache back and tried again {memory.alloc_retries} times"
        yield Violation(PATH, message, "lower the batch per device and accumulate")
