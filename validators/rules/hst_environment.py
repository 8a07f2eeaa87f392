"""HST, what surrounds the process: modules that hide the project's, variables that contradict each other."""

from __future__ import annotations

from collections.abc import Mapping

from neobert.plan import Plan
from neobert.plan.strategies import FOREIGN_HINT, foreign_strategies, strategy_in_file
from profiles.registry import ResolvedRun
from validators.facts import AccelerateFileFacts, Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

ALONE, COMPILED, RANKS, NODES = "alone", "compiled", "ranks", "nodes"
DEBUGGING = {
    "CUDA_LAUNCH_BLOCKING": ("1", ALONE, "the host waits for each kernel"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", ALONE, "each tensor is a call of the driver"),
    "TRITON_INTERPRET": ("1", ALONE, "Triton's kernels are interpreted, not compiled"),
    "TORCH_COMPILE_DISABLE": ("1", COMPILED, "nothing is compiled, whatever trainer.torch_compile says"),
    "TORCHDYNAMO_DISABLE": ("1", COMPILED, "nothing is compiled, whatever trainer.torch_compile says"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", RANKS, "each collective is checked by another one"),
    "NCCL_P2P_DISABLE": ("1", RANKS, "gradients go by the host's memory, not from GPU to GPU"),
    "NCCL_SHM_DISABLE": ("1", RANKS, "what goes by the host goes through the network"),
    "NCCL_IB_DISABLE": ("1", NODES, "gradients go by sockets, not by InfiniBand or RoCE"),
}
"""Variables that are set to find a fault, the value that switches each on, whom it costs, and what."""
FILE_HINT = "set distributed.mode to replicated or fsdp2; the file may stay for other programs"
ALLOCATOR, OLD_ALLOCATOR = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


@rule(
    "HST006",
    "shadowed-package",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("software",),
    waivable=False,
)
def shadowed_package(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A foreign module under the name of one of the project's packages.

    ## What it does
    Fails where `neobert`, `launcher`, `profiles` or `validators` would be imported from a file that is
    not the project's. The names are common ones, and the package index has another `validators`.

    ## Why is this bad?
    The import succeeds. What runs then is somebody else's code, or half of each.

    ## Example
    ```text
    pip install validators   # into the same environment
    ```

    ## Use instead
    ```text
    an environment of its own: make setup
    ```
    """
    assert facts.software is not None
    for module, file in sorted(facts.software.shadowed.items()):
        yield Violation(
            "", f"{module} is hidden by {file}", "install the project into an environment of its own"
        )


@rule("HST007", "contradictory-allocator", severity=Severity.WARN, level=Level.HOST, needs=("host",))
def contradictory_allocator(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Allocator settings that contradict each other.

    ## What it does
    Warns where PYTORCH_ALLOC_CONF and the older PYTORCH_CUDA_ALLOC_CONF are both set, and where
    `max_split_size_mb` stands beside `expandable_segments:True`.

    ## Why is this bad?
    One of two variables is ignored, and expandable segments leave nothing to split: whoever tunes the
    other setting tunes nothing.

    ## Example
    ```text
    PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:256,expandable_segments:True
    ```

    ## Use instead
    ```text
    PYTORCH_ALLOC_CONF=expandable_segments:True
    ```
    """
    assert facts.host is not None
    environment = facts.host.environment
    if ALLOCATOR in environment and OLD_ALLOCATOR in environment:
        yield Violation("", f"{ALLOCATOR} and {OLD_ALLOCATOR} are both set", f"unset {OLD_ALLOCATOR}")
    for name in (ALLOCATOR, OLD_ALLOCATOR):
        if _contradicts_itself(_settings(environment, name)):
            message = f"{name} sets max_split_size_mb beside expandable_segments:True"
            yield Violation("", message, f"{ALLOCATOR}=expandable_segments:True")


def _settings(environment: Mapping[str, str], name: str) -> dict[str, str]:
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
    """A package that is installed and does not import, or a device that does not compute.

    ## What it does
    Imports in a child what the trainer imports, with the optional kernels that are installed, and has every
    device of the run multiply small whole numbers. An optional package that does not import fails too:
    what is chosen automatically would be another kernel than on the next machine. A build of torch
    without CUDA fails where the profile requires a GPU.

    ## Why is this bad?
    A wheel for another CUDA or another ABI has the right version and fails at its first symbol, in the
    middle of a launch, or is passed over in silence for a slower kernel.

    ## Example
    ```text
    flash_attn: ImportError: undefined symbol: _ZN3c104cuda9SetDeviceEa
    ```

    ## Use instead
    ```text
    pip install --force-reinstall --no-cache-dir, against the torch that is installed
    ```
    """
    imports = facts.imports
    assert imports is not None
    for module, reason in sorted(imports.failed.items()):
        yield Violation("", f"{module}: {reason}", "install a build for this Python, torch and CUDA")
    if imports.kernel_error:
        yield Violation("", imports.kernel_error, "nvidia-smi, and a torch build for this driver")
    needs_cuda = run.device == "cuda"
    if needs_cuda and facts.gpus and not imports.cuda_version:
        message = "torch was built without CUDA, and the profile requires a GPU"
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
    """An environment that asks for another way of sharing the model, or another device, than the run does.

    ## What it does
    Fails where FSDP of accelerate (1 or 2), DeepSpeed, Megatron-LM or a parallelism of accelerate's own is
    switched on by a variable, as `accelerate launch` does for its config file, or where one names the device.
    Fails as well where ACCELERATE_CONFIG_FILE names a file that asks for FSDP 1, DeepSpeed or Megatron-LM, or
    one that cannot be read. Where accelerate's default file asks for one of them, and nothing sets
    `distributed.mode`, this warns: nothing is launched through accelerate, so that file has no effect.

    ## Why is this bad?
    The variables are inherited without a word. FSDP 1 flattens parameters, so that matrices cannot be told
    from norms: weight decay, Muon and checkpoints would all be wrong. On another device a run would train
    where nothing was checked. The trainer refuses too, but later.

    ## Example
    ```text
    ACCELERATE_USE_FSDP=true FSDP_VERSION=1
    ```

    ## Use instead
    ```text
    unset ACCELERATE_USE_FSDP, and distributed.mode: fsdp2
    ```
    """
    assert facts.host is not None
    for name in foreign_strategies(facts.host.environment):
        yield Violation("distributed.mode", f"the environment asks for {name}", FOREIGN_HINT)
    if facts.host.accelerate_file is not None:
        is_chosen = run.origin("distributed.mode").kind != "default"
        yield from _in_file(facts.host.accelerate_file, is_chosen)


def _in_file(file: AccelerateFileFacts, is_chosen: bool) -> Violations:
    """A file that is named is meant for this run; where a mode is chosen, the default one does not matter."""
    if file.is_named and file.error:
        message = f"ACCELERATE_CONFIG_FILE names {file.path}, which cannot be read: {file.error}"
        yield Violation("distributed.mode", message, "unset ACCELERATE_CONFIG_FILE")
        return
    strategy = strategy_in_file(file.distributed_type, file.fsdp_version)
    message = f"{file.path} asks for {strategy}, and config files of accelerate are not applied here"
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
    """Variables that somebody set to find a fault, and that slow a production run.

    ## What it does
    Warns of CUDA_LAUNCH_BLOCKING, PYTORCH_NO_CUDA_MEMORY_CACHING and TRITON_INTERPRET where the profile
    requires a GPU; of TORCH_COMPILE_DISABLE and TORCHDYNAMO_DISABLE where the run compiles; of
    TORCH_DISTRIBUTED_DEBUG=DETAIL, NCCL_P2P_DISABLE and NCCL_SHM_DISABLE with several processes, and of
    NCCL_IB_DISABLE with several nodes.

    ## Why is this bad?
    They are set in a shell or a job script, outlive what they were set for, and change no result. A run that
    takes half as long again for one of them is above each floor of utilisation.

    ## Example
    ```text
    export CUDA_LAUNCH_BLOCKING=1   # to see where it crashed, last month
    ```

    ## Use instead
    ```text
    unset CUDA_LAUNCH_BLOCKING
    ```
    """
    assert facts.host is not None
    costs = _who_pays(run, plan)
    for name, (value, whom, effect) in DEBUGGING.items():
        if whom in costs and facts.host.environment.get(name, "").upper() == value:
            yield Violation("", f"{name}={value}: {effect}", f"unset {name}")


def _who_pays(run: ResolvedRun, plan: Plan) -> set[str]:
    applies = {
        ALONE: run.device == "cuda",
        COMPILED: run.config.trainer.torch_compile,
        RANKS: plan.world_size.value > 1,
        NODES: run.config.distributed.nnodes > 1,
    }
    return {whom for whom, is_so in applies.items() if is_so}
