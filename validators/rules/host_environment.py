"""Host rules: shadowed modules, broken imports, environment variables and signals of a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from neobert.plan import Plan
from neobert.plan.strategies import FOREIGN_HINT, foreign_strategies, foreign_strategy_in_file
from neobert.precision.libraries import enabled_conversions
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.remaining import remaining_in_launch, sentence_subject
from validators.rule import Violations, require_group, rule

if TYPE_CHECKING:
    from validators.facts_host import AccelerateFileFacts, SchedulerFacts

GPU, COMPILED, RANKS, NODES, ENGINE = "gpu", "compiled", "ranks", "nodes", "transformer_engine"
DEBUGGING = {
    "CUDA_LAUNCH_BLOCKING": ("1", GPU, "the host waits for each kernel"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", GPU, "each tensor allocation is a driver call"),
    "TRITON_INTERPRET": ("1", GPU, "Triton kernels are interpreted, not compiled"),
    "TORCH_COMPILE_DISABLE": ("1", COMPILED, "torch.compile is disabled, despite trainer.torch_compile"),
    "TORCHDYNAMO_DISABLE": ("1", COMPILED, "torch.compile is disabled, despite trainer.torch_compile"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", RANKS, "each collective is verified by another one"),
    "NCCL_P2P_DISABLE": ("1", RANKS, "gradients go through host memory instead of GPU to GPU"),
    "NCCL_SHM_DISABLE": ("1", RANKS, "transfers through host memory use the network"),
    "NCCL_IB_DISABLE": ("1", NODES, "gradients use sockets instead of InfiniBand or RoCE"),
    "NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES": ("1", "fp8_current", "scales are powers of two"),
    "NVTE_FP8_BLOCK_SCALING_FP32_SCALES": ("1", "fp8_block", "scales are not powers of two"),
    "NVTE_BACKWARD_OVERRIDE": ("DEQUANTIZED HIGH_PRECISION", ENGINE, "gradients are not in the recipe"),
}
"""Per debugging variable: the values that enable it, the runs or recipe that it affects, and its effect."""
FILE_HINT = "set distributed.mode to replicated or fsdp2; the file may stay for other programs"
ALLOCATOR, OLD_ALLOCATOR = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"

SAVES_OF_WARNING = 3
WRITE_MIB_PER_S = 200


@rule(
    "HST006",
    "shadowed-package",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("software",),
    waivable=False,
)
def shadowed_package(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A module of another distribution that shadows one of this project's packages.

    ## What it does
    Fails if `neobert` would be imported from a file that does not belong to the project. In an editable
    installation, also checks `launcher`, `profiles` and `validators`: the names are common, and the package
    index has another `validators`. A wheel has them inside `neobert`.

    ## Why is this bad?
    The import succeeds, but runs somebody else's code, or a mix of both.

    ## Example
    ```text
    pip install validators   # into the same environment
    ```

    ## Use instead
    ```text
    a separate environment: make setup
    ```
    """
    for module, file in sorted(require_group(facts.software).shadowed.items()):
        hint = "remove that folder from PYTHONPATH, or install the project in a separate environment"
        yield Violation("", f"{module} is shadowed by {file}", hint)


@rule("HST007", "contradictory-allocator", severity=Severity.WARN, level=Level.HOST, needs=("host",))
def contradictory_allocator(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Contradictory allocator settings.

    ## What it does
    Warns if PYTORCH_ALLOC_CONF and the older PYTORCH_CUDA_ALLOC_CONF are both set, and if
    `max_split_size_mb` is combined with `expandable_segments:True`.

    ## Why is this bad?
    One of the two variables is ignored, and with expandable segments there is nothing to split, so tuning the
    other setting has no effect.

    ## Example
    ```text
    PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:256,expandable_segments:True
    ```

    ## Use instead
    ```text
    PYTORCH_ALLOC_CONF=expandable_segments:True
    ```
    """
    environment = require_group(facts.host).environment
    if ALLOCATOR in environment and OLD_ALLOCATOR in environment:
        yield Violation("", f"{ALLOCATOR} and {OLD_ALLOCATOR} are both set", f"unset {OLD_ALLOCATOR}")
    for name in (ALLOCATOR, OLD_ALLOCATOR):
        if _contradicts_itself(_allocator_settings(environment, name)):
            message = f"{name} sets max_split_size_mb together with expandable_segments:True"
            yield Violation("", message, f"set {ALLOCATOR}=expandable_segments:True")


def _allocator_settings(environment: Mapping[str, str], name: str) -> dict[str, str]:
    pairs = (setting.partition(":") for setting in environment.get(name, "").split(","))
    return {key.strip(): value.strip() for key, _, value in pairs}


def _contradicts_itself(settings: Mapping[str, str]) -> bool:
    return "max_split_size_mb" in settings and settings.get("expandable_segments", "").lower() == "true"


@rule(
    "HST008",
    "broken-import",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("imports",),
    production_only=True,
)
def broken_import(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A package that is installed but cannot be imported, or a device that cannot compute.

    ## What it does
    Imports what the trainer imports, in a child process, including installed optional kernels, and multiplies
    small integers on every device of the run. An optional package that cannot be imported also
    fails, because `auto` would select another kernel than on the next machine. A CPU-only build of torch
    fails if the profile requires a GPU.

    ## Why is this bad?
    A wheel for another CUDA or ABI has the right version, but fails at its first symbol in the
    middle of a launch, or is silently skipped for a slower kernel.

    ## Example
    ```text
    flash_attn: ImportError: undefined symbol: _ZN3c104cuda9SetDeviceEa
    ```

    ## Use instead
    ```text
    pip install --force-reinstall --no-cache-dir PACKAGE, built for the installed torch
    ```
    """
    imports = require_group(facts.imports)
    for module, reason in sorted(imports.failed.items()):
        yield Violation("", f"{module}: {reason}", "install a build for this Python, torch and CUDA")
    if imports.kernel_error:
        yield Violation("", imports.kernel_error, "run nvidia-smi, and install a torch build for this driver")
    needs_cuda = run.device == "cuda"
    if needs_cuda and facts.gpus and not imports.cuda_version:
        message = "torch was built without CUDA, but the profile requires a GPU"
        yield Violation("", message, "install torch from its CUDA index")


@rule(
    "HST009",
    "foreign-strategy",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("host",),
    waivable=False,
)
def foreign_strategy(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An environment that selects a different parallelism or device than the run.

    ## What it does
    Fails if a variable enables accelerate's FSDP (1 or 2), DeepSpeed, Megatron-LM or accelerate's own
    parallelism, as `accelerate launch` does for its config file, or if one sets the device. Also fails if
    ACCELERATE_CONFIG_FILE names a file that selects FSDP 1, DeepSpeed or Megatron-LM, or that cannot be
    read. Warns if accelerate's default file selects one of them and `distributed.mode` is not set: the run
    is not launched with accelerate, so that file has no effect.

    ## Why is this bad?
    Variables are inherited silently. FSDP 1 flattens parameters, so matrices and norms cannot be
    distinguished: weight decay, Muon and checkpoints would be wrong. On another device a run would train
    where nothing was checked. The trainer rejects them too, but later.

    ## Example
    ```text
    ACCELERATE_USE_FSDP=true FSDP_VERSION=1
    ```

    ## Use instead
    ```text
    unset ACCELERATE_USE_FSDP, and set distributed.mode: fsdp2
    ```
    """
    host = require_group(facts.host)
    for name in foreign_strategies(host.environment):
        yield Violation("distributed.mode", f"the environment selects {name}", FOREIGN_HINT)
    if host.accelerate_file is not None:
        is_chosen = run.origin("distributed.mode").kind != "default"
        yield from _accelerate_file_violations(host.accelerate_file, is_chosen=is_chosen)


def _accelerate_file_violations(file: AccelerateFileFacts, *, is_chosen: bool) -> Violations:
    """Yield violations for settings in accelerate's config file.

    The default file is only checked if distributed.mode is not set.
    """
    if file.is_named and file.error:
        message = f"ACCELERATE_CONFIG_FILE is {file.path}, which cannot be read: {file.error}"
        yield Violation("distributed.mode", message, "unset ACCELERATE_CONFIG_FILE")
        return
    strategy = foreign_strategy_in_file(file.distributed_type, file.fsdp_version)
    message = f"{file.path} selects {strategy}, but accelerate config files are not applied"

    if strategy and file.is_named:
        yield Violation("distributed.mode", message, "unset ACCELERATE_CONFIG_FILE")
    elif strategy and not is_chosen:
        yield Violation("distributed.mode", message, FILE_HINT, Severity.WARN)


@rule(
    "HST010",
    "debugging-environment",
    severity=Severity.WARN,
    level=Level.HOST,
    needs=("host",),
    production_only=True,
)
def debugging_environment(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Debugging variables that slow down a production run, or change its precision.

    ## What it does
    Warns about CUDA_LAUNCH_BLOCKING, PYTORCH_NO_CUDA_MEMORY_CACHING and TRITON_INTERPRET if the profile
    requires a GPU; about TORCH_COMPILE_DISABLE and TORCHDYNAMO_DISABLE if `trainer.torch_compile` is true;
    about TORCH_DISTRIBUTED_DEBUG=DETAIL, NCCL_P2P_DISABLE and NCCL_SHM_DISABLE with several processes, and
    about NCCL_IB_DISABLE with several nodes. With `transformer_engine.enable`, also about variables from
    which Transformer Engine takes defaults of the run's recipe.

    ## Why is this bad?
    They stay in a shell or a job script after debugging. A run that takes 50 % longer because of one still
    passes every utilization check. A variable that changes a recipe is not in the config: the same config
    trains differently on a machine without it.

    ## Example
    ```text
    export CUDA_LAUNCH_BLOCKING=1   # to see where it crashed, last month
    ```

    ## Use instead
    ```text
    unset CUDA_LAUNCH_BLOCKING
    ```
    """
    environment, affected = require_group(facts.host).environment, _affected_kinds(run, plan)
    for name, (values, kind, effect) in DEBUGGING.items():
        if kind in affected and environment.get(name, "").upper() in values.split():
            yield Violation("", f"{name}={environment[name]}: {effect}", f"unset {name}")


def _affected_kinds(run: ResolvedRun, plan: Plan) -> set[str]:
    applies = {
        GPU: run.device == "cuda",
        COMPILED: run.config.trainer.torch_compile,
        RANKS: plan.world_size.value > 1,
        NODES: run.config.distributed.nnodes > 1,
    }
    kinds = {kind for kind, is_affected in applies.items() if is_affected}
    return kinds.union(*({each.library.name, each.name} for each in enabled_conversions(run.config)))


def lead_for_saves_s(plan: Plan) -> float:
    """Return how many seconds before its end a job should be signalled: the duration of three saves."""
    return SAVES_OF_WARNING * plan.checkpoint_mib.value / WRITE_MIB_PER_S


@rule("HST005", "abrupt-walltime", severity=Severity.FAIL, level=Level.HOST, needs=("scheduler",))
def _abrupt_walltime(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A batch job that is killed before it can save a checkpoint.

    ## What it does
    For a job whose time limit ends before the run does, requires that the scheduler sends a signal before
    the kill, early enough for three saves at an assumed 200 MiB/s. If it does, a time limit below the
    predicted duration is a warning: the job must be requeued. The same holds if Slurm reports the end of the
    job (`SLURM_JOB_END_TIME`): the trainer then stops in time by the clock. For a run that resumes or
    continues from a checkpoint, only the remaining steps count. Fails for a job that has ended, whose
    variables are left in this environment. In a Slurm partition whose jobs are preempted, the same saves have
    to fit between the warning and the kill (a warning for runs that are not production): that is the
    partition's `GraceTime`, if the launcher runs as a step (`srun`), and the `KillWait` of the cluster,
    because Slurm warns a batch script only when the grace time is over. Without a scheduler the rule does not
    apply.

    ## Why is this bad?
    A killed job loses everything since its last save, possibly each time it is requeued or preempted.

    ## Example
    ```text
    #SBATCH --time=24:00:00
    ```

    ## Use instead
    ```text
    #SBATCH --time=24:00:00 --signal=TERM@120 --requeue
    ```
    """
    scheduler = require_group(facts.scheduler)
    yield from _short_preemption(run, scheduler, lead_for_saves_s(plan))
    left = remaining_in_launch(run, plan, facts)
    left_s, needed_s = scheduler.walltime_left_s, left.eta_s.value
    if not scheduler.name or left_s is None or left_s >= needed_s:
        return
    if left_s <= 0:
        message = f"job {scheduler.job_id} ended {-left_s / 3600:.1f} hours ago: the run would stop at once"
        hint = "unset SLURM_JOB_ID and SLURM_JOB_END_TIME, which are from another job"
        yield Violation("guard.walltime_limit_hours", message, hint)
        return
    lead = lead_for_saves_s(plan)
    takes = f"{sentence_subject(left)} takes {needed_s / 3600:.1f} hours"
    ends = f"job {scheduler.job_id} ends in {left_s / 3600:.1f} hours, but {takes}"
    if scheduler.signal_lead_s < lead:
        signal = (
            f"its signal comes {scheduler.signal_lead_s:g} s before the kill (at least {lead:.0f} s needed)"
        )
        message = f"{ends}; {signal}"
        severity = Severity.WARN if scheduler.end_is_known else None
        yield Violation(
            "guard.walltime_limit_hours", message, f"run `sbatch --signal=TERM@{lead:.0f}`", severity
        )
    else:
        yield Violation(
            "guard.walltime_limit_hours", ends, "requeue the job with --resume auto", Severity.WARN
        )


def _short_preemption(run: ResolvedRun, scheduler: SchedulerFacts, needed_s: float) -> Violations:
    lead_s = scheduler.preempt_lead_s
    if lead_s is None or lead_s >= needed_s:
        return
    message = (
        f"job {scheduler.job_id} may be preempted {lead_s:g} s after its warning (at least {needed_s:.0f} s: "
        "three saves)"
    )
    hint = "submit the job to another partition: neobert-launch submit --to slurm --partition PARTITION"
    if not scheduler.is_step:
        hint = "start the launcher with srun, as `neobert-launch submit` does: steps are warned earlier"
    yield Violation("", message, hint, None if run.is_production else Severity.WARN)
