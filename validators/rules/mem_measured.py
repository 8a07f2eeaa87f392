"""MEM: memory measured in a rehearsal, compared with the prediction and over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neobert.plan import Plan
from neobert.plurals import counted
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import NEEDS, measured, no_gpu_is_required, rehearsal_of
from validators.rule import Violations, rule

if TYPE_CHECKING:
    from validators.facts_rehearsal import MemoryFacts

LEAST_RATIO, MOST_RATIO = 0.5, 1.5
MOST_RESERVED = 1.5
GROWTH_STEPS = 50
GROWTH_SHARE = 0.01
PATH = "trainer.per_device_train_batch_size"


def _memory(facts: Facts) -> MemoryFacts:
    return measured(rehearsal_of(facts).memory, facts, "device memory")


@rule(
    "MEM002",
    "memory-not-as-predicted",
    severity=Severity.WARN,
    level=Level.REHEARSAL,
    needs=NEEDS,
    inapplicable=no_gpu_is_required,
)
def memory_not_as_predicted(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Measured memory that differs widely from the prediction.

    ## What it does
    Compares the peak of the rehearsal, including the device context, with the plan's sum of weights,
    gradients, moments, activations, logits and runtime. Warns below 0.5 or above 1.5 times that sum, and if
    the allocator reserved 1.5 times the allocated memory or more.

    ## Why is this bad?
    Twice the memory means that something runs in another precision, or that a kernel keeps buffers that it
    should free; half of it, that another model trains. Much more reserved than allocated memory is
    fragmentation, which grows until the run is out of memory.

    ## Example
    ```text
    66 GiB reserved, 21 GiB allocated: 3.1 times
    ```

    ## Use instead
    ```text
    constant shapes (datacollator.pack_sequences), expandable segments in PYTORCH_ALLOC_CONF
    ```
    """
    memory, predicted = _memory(facts), predicted_mib(plan)
    peak = memory.peak_allocated_mib + memory.context_mib
    if not LEAST_RATIO <= peak / predicted <= MOST_RATIO:
        yield Violation(
            PATH,
            f"peak memory is {peak:,} MiB, {peak / predicted:.2f} times the predicted {predicted:,.0f} MiB "
            f"({LEAST_RATIO:g} to {MOST_RATIO:g} expected)",
            "compare precision, kernels and sizes with the plan: neobert-launch plan --verbose",
        )
    if memory.peak_reserved_mib >= MOST_RESERVED * memory.peak_allocated_mib:
        yield Violation(
            PATH,
            f"{memory.peak_reserved_mib:,} MiB reserved for {memory.peak_allocated_mib:,} MiB allocated",
            "use constant shapes, or set PYTORCH_ALLOC_CONF=expandable_segments:True",
        )


def predicted_mib(plan: Plan) -> float:
    """Return the sum of the plan's estimates, which measurements do not replace."""
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
    """Memory that grows from step to step, or an allocator that has to retry.

    ## What it does
    Warns if memory allocated between steps would grow by more than 1 % of the peak in 50 steps, and if
    the allocator had to flush its cache and retry.

    ## Why is this bad?
    A leak of a few MiB per step is invisible in a test and ends the run within an hour. A retry stalls the
    device, and is the last stage before an out-of-memory error.

    ## Example
    ```text
    losses kept in a list, each with its graph
    ```

    ## Use instead
    ```text
    losses detached and summed on the device
    ```
    """
    memory = _memory(facts)
    growth = memory.growth_mib_per_step * GROWTH_STEPS
    if growth > GROWTH_SHARE * memory.peak_allocated_mib:
        message = f"memory allocated between steps grows by {growth:,.0f} MiB in {GROWTH_STEPS} steps"
        yield Violation("trainer", message, "find tensors that are kept across steps")
    if memory.alloc_retries:
        message = f"the allocator flushed its cache and retried {counted(memory.alloc_retries, 'time')}"
        hint = f"lower {PATH} and raise trainer.gradient_accumulation_steps"
        yield Violation(PATH, message, hint)
