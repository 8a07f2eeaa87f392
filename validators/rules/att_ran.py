"""ATT: the attention kernel that each block ran during the rehearsal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neobert.families.table import requested_kernels
from neobert.kernel_table import OWN_KERNELS, attention_named
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import NEEDS, measured, rehearsal_of
from validators.rule import CannotTellError, Violations, rule
from validators.rules.att import PATH

if TYPE_CHECKING:
    from validators.facts_rehearsal import DispatchFacts


@rule("ATT002", "other-attention-ran", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def other_attention_ran(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A block that ran another attention kernel than the requested one.

    ## What it does
    Each block reports at run time the kernel that it calls. The rule compares that with the resolved
    kernel and with `model.attn_backend`. Blocks compiled into one graph report once.

    ## Why is this bad?
    Libraries fall back silently: the run is slow, or its packed documents attend to each other,
    while the config still names the kernel that should have run.

    ## Example
    ```text
    flash_attn_varlen was requested, block 3 ran sdpa
    ```

    ## Use instead
    ```text
    model.attn_backend: auto; `neobert-launch rule ATT001` lists what each kernel needs
    ```
    """
    dispatch = measured(rehearsal_of(facts).attention, facts, "the attention kernel")
    if not any(dispatch.ran):
        raise CannotTellError("no block reported the attention kernel that it ran")
    for kernel, blocks in _others(dispatch).items():
        message = f"{dispatch.resolved} was resolved, but {_blocks(blocks)} ran {kernel}"
        yield Violation(PATH, message, "set model.attn_backend to auto; see neobert-launch rule ATT001")
    silent = [number for number, kernel in enumerate(dispatch.ran) if not kernel]
    if silent and not run.config.trainer.torch_compile:
        raise CannotTellError(f"{_blocks(silent)} did not report the attention kernel")
    _, requested = requested_kernels(run.config)
    expected = [kernel.name for kernel in attention_named(requested)]
    is_own = plan.kernels.value in OWN_KERNELS
    if requested != "auto" and not is_own and dispatch.resolved not in expected:
        message = f"{requested} was requested, but {dispatch.resolved} was resolved"
        yield Violation(PATH, message, "set model.attn_backend to auto, or to a kernel that runs here")


def _others(dispatch: DispatchFacts) -> dict[str, list[int]]:
    """Return the block numbers of each kernel other than the resolved one."""
    blocks: dict[str, list[int]] = {}
    for number, kernel in enumerate(dispatch.ran):
        if kernel and kernel != dispatch.resolved:
            blocks.setdefault(kernel, []).append(number)
    return blocks


def _blocks(numbers: list[int]) -> str:
    return f"block{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
