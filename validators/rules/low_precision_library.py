"""Rules of the libraries of low precision: one at a time, installed, and on a GPU that has their products."""

from __future__ import annotations

from neobert.plan import Plan
from neobert.precision.libraries import conversions_of
from neobert.precision.library import UNBOUNDED, Version
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, needed, rule
from validators.rules.low_precision import enabled_in, has_no_gpu_recipe, is_off


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


@rule(
    "PRE005",
    "low-precision-beyond-gpu",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("gpus", "software"),
    inapplicable=has_no_gpu_recipe,
)
def low_precision_beyond_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A recipe whose matrix products the GPU does not have.

    ## What it does
    Compares the compute capability of every visible GPU, and the CUDA version of torch's build, with what the
    recipe needs. An H100 (9.0) runs `float8_*`, `fp8_current` and, from CUDA 12.9, `fp8_block`. A B200 (10.0)
    runs `mxfp8*` and `nvfp4` too, a GPU of capability 12.0 `quartet_ii` and Transformer Engine's `nvfp4`.

    ## Why is this bad?
    The library raises an error in the first step, or emulates the products, which is many times slower.

    ## Example
    ```text
    torchao.recipe: mxfp8_rceil on an H100 (compute capability 9.0)
    ```

    ## Use instead
    ```text
    torchao.recipe: float8_rowwise
    ```
    """
    conversion = enabled_in(run)
    name, recipe, key = conversion.name, conversion.recipe, conversion.key("recipe")
    first, beyond = recipe.capabilities
    required = _dotted(first) if beyond == UNBOUNDED else f"{_dotted(first)} to below {_dotted(beyond)}"
    for gpu in facts.gpus or ():
        if not recipe.runs_on(gpu.compute_capability):
            own = f"GPU {gpu.index} ({gpu.name}) has compute capability {_dotted(gpu.compute_capability)}"
            rows = conversion.library.recipes.items()
            usable = [each for each, row in rows if row.runs_on(gpu.compute_capability)]
            hint = f"set {key} to {usable[0]}" if usable else conversion.remove
            yield Violation(key, f"{own}; {name} needs {required}", hint)
    built = needed(facts.software).torch_cuda
    if built and tuple(map(int, built.split(".")[:2])) < recipe.min_cuda:
        least = _dotted(recipe.min_cuda)
        message = f"torch is built for CUDA {built}; {name} needs {least}"
        yield Violation(key, message, f"install torch for CUDA {least}, or {conversion.remove}")


@rule(
    "PRE010",
    "low-precision-missing",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("software",),
    waivable=False,
    inapplicable=is_off,
)
def low_precision_missing(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Low precision without the package that computes it.

    ## What it does
    Requires the package of the section that is enabled.

    ## Why is this bad?
    The run would end when it converts its layers, after the text was prepared.

    ## Example
    ```text
    torchao.enable: true, and torchao is not installed
    ```

    ## Use instead
    ```text
    pip install 'torchao>=0.18'
    ```
    """
    conversion = enabled_in(run)
    package, key = conversion.library.package, conversion.key("enable")
    if package not in needed(facts.software).packages:
        message = f"{key} is true, but {package} is not installed"
        yield Violation(key, message, conversion.library.install)


@rule("PRE013", "several-low-precisions", severity=Severity.FAIL, level=Level.STATIC, inapplicable=is_off)
def several_low_precisions(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Several libraries of low precision in one run.

    ## What it does
    Requires that at most one of the sections `torchao`, `transformer_engine` and `quartet2` is enabled.

    ## Why is this bad?
    Each converts the same layers.

    ## Example
    ```yaml
    torchao:
      enable: true
    transformer_engine:
      enable: true
    ```

    ## Use instead
    ```yaml
    torchao:
      enable: true
    ```
    """
    first, *others = conversions_of(run.config)
    for other in others:
        key = other.key("enable")
        yield Violation(key, f"{key} and {first.key('enable')} are both true", other.remove)
