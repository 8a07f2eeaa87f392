"""ATT, the part that a rehearsal sees: the kernel that every block really ran."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_rehearsal import DispatchFacts
from validators.finding import Level, Severity, Violation
from validators.rehearsed import NEEDS, measured, rehearsal_of
from validators.rule import CannotTellError, Violations, rule
from validators.rules.att import PATH, VARLEN

NAMED = {
    "flash_attn_varlen": VARLEN["flash_attn_varlen"],
    "torch_varlen": ("torch_varlen",),
    "flex": ("flex",),
    "sdpa": ("sdpa",),
}


@rule("ATT002", "other-attention-ran", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def other_attention_ran(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A block that ran another attention kernel than was asked for.

    ## What it does
    Has every block say at run time which kernel it calls, and compares that with the kernel that was
    resolved and with `model.attn_backend`. Blocks that were compiled into one graph say it once.

    ## Why is this bad?
    A library that falls back does so in silence: the run is slow, or its packed documents read each other,
    and the config still names the kernel that it should have run on.

    ## Example
    ```text
    flash_attn_varlen was asked for, block 3 ran sdpa
    ```

    ## Use instead
    ```text
    model.attn_backend: auto, and ATT001 to say what is legal here
    ```
    """
    found = measured(rehearsal_of(facts).attention, facts, "the attention kernel")
    if not any(found.ran):
        raise CannotTellError("no block said what it ran")
    for kernel, blocks in _others(found).items():
        message = f"{found.resolved} was resolved, and {kernel} ran in {_blocks(blocks)}"
        yield Violation(PATH, message, "set it to auto, and look at neobert-launch rule ATT001")
    silent = [number for number, kernel in enumerate(found.ran) if not kernel]
    if silent and not run.config.trainer.torch_compile:
        raise CannotTellError(f"{_blocks(silent)} did not say what they ran")
    legal = NAMED.get(run.config.model.attn_backend)
    is_own = plan.kernels.value in ("triton", "fused")
    if legal is not None and not is_own and found.resolved not in legal:
        message = f"{run.config.model.attn_backend} is asked for, and {found.resolved} was resolved"
        yield Violation(PATH, message, "name a kernel that runs here, or set it to auto")


def _others(found: DispatchFacts) -> dict[str, list[int]]:
    """Return the blocks of every kernel that is not the one resolved."""
    blocks: dict[str, list[int]] = {}
    for number, kernel in enumerate(found.ran):
        if kernel and kernel != found.resolved:
            blocks.setdefault(kernel, []).append(number)
    return blocks


def _blocks(numbers: list[int]) -> str:
    return f"block{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
