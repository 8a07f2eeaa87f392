"""Table of kernels: requirements and properties of each.

The resolver, the planner, the rules and the probes use this table; they differ only in how they inspect the
machine. Imports only the standard library, because checkpoint folders contain a copy of this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

Program = Literal["single", "compiled", "loop"]
"""Execution of attention over a packed row. `single`: one kernel launch. `compiled`: one launch, compiled by
torch. `loop`: one call per segment, which is slow and cannot be compiled."""

Feature = Literal[
    "causal attention",
    "sliding windows",
    "grouped heads",
    "a scale of its own",
    "a soft cap on scores",
    "selected blocks",
]
"""Part of a model's attention that not every kernel computes, beyond attention in both directions with equal
heads, over whole segments."""

UNBOUNDED = float("inf")
HALF = ("bfloat16", "float16")
ANY_DTYPE = (*HALF, "float32")


class Package(NamedTuple):
    """Python distribution that provides kernels.

    Attributes:
        module: module to import; importing it fails if the kernels cannot be used.
        requirement: arguments of `pip install`.
        oldest: oldest tested release; empty if any release is accepted.
        extra: extra of this project that installs the package; empty if none does.
    """

    name: str
    module: str
    requirement: str
    oldest: str = ""
    extra: str = ""


TORCH = Package("torch", "torch", "'torch>=2.11'")
TRITON = Package("triton", "triton", "triton")
QUACK = Package("quack-kernels", "quack", "'quack-kernels>=0.6.5'", "0.6.5", "fused")
FLASH_4 = Package("flash-attn-4", "flash_attn.cute.interface", "'flash-attn-4>=4.0.0b1'", "4.0.0", "fused")
FLASH_3 = Package("flash-attn-3", "flash_attn_interface", "flash-attn-3")
# It is built against the torch that is installed, hence no isolated build.
FLASH_2 = Package("flash-attn", "flash_attn", "--no-build-isolation 'flash-attn>=2.8'", "2.8", "flash")
LIGER = Package("liger-kernel", "liger_kernel", "'liger-kernel>=0.8'", "0.8", "liger")
FLA = Package("flash-linear-attention", "fla.ops.nsa", "'flash-linear-attention>=0.6,<0.7'", "0.6", "nsa")
WITH_TORCH = (TORCH, TRITON)
"""Packages that every installation on a GPU has."""
OPTIONAL_PACKAGES = (FLASH_2, FLASH_3, QUACK, FLASH_4, LIGER, FLA, TRITON)


def install_line(package: Package) -> str:
    """Return the pip command that installs a package, together with the other packages of its extra."""
    together = [each for each in OPTIONAL_PACKAGES if each.extra == package.extra != ""] or [package]
    return " ".join(["pip install", *(each.requirement for each in together)])


class Gpu(NamedTuple):
    """GPU: its name in messages, and its compute capability (major, minor)."""

    label: str
    capability: tuple[int, int]


class Environment(NamedTuple):
    """Properties of a run on which the choice of kernels depends.

    Attributes:
        device: "cuda" or "cpu".
        dtype: dtype of computation, one of `ANY_DTYPE`.
        head_size: size of an attention head; None if unknown.
        gpus: GPUs of the run, which must all support the kernel; empty if unknown.
        features: what the model's attention needs of its kernel.
        row_length: longest row, and so longest segment, in tokens; None if unknown.
    """

    device: str
    dtype: str
    head_size: float | None = None
    gpus: tuple[Gpu, ...] = ()
    features: tuple[Feature, ...] = ()
    row_length: int | None = None


class Obstacle(NamedTuple):
    """Reason why a kernel cannot run, and the edit or command that fixes it."""

    message: str
    hint: str


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Kernel:
    """Kernel and its requirements.

    Attributes:
        KEY: config key that selects the kernel.
        packages: packages that must be installed.
        family: model family that alone has this attention; no key selects the kernel. Empty: any family.
        needs_cpu: a reference that is too slow for a GPU, where another kernel must run.
        dtypes: supported dtypes of computation.
        head_multiple, largest_head: head sizes must be multiples of the first and at most the second.
        majors: first and last supported major compute capability; None if any is supported.
        features: supported parts of a model's attention.
    """

    KEY: ClassVar[str]

    name: str
    packages: tuple[Package, ...] = ()
    family: str = ""
    needs_cuda: bool = True
    needs_cpu: bool = False
    dtypes: tuple[str, ...] = HALF
    head_multiple: int = 1
    largest_head: float = UNBOUNDED
    majors: tuple[int, int] | None = None
    features: tuple[Feature, ...] = ()

    def obstacle(
        self, environment: Environment, is_missing: Callable[[Package], bool] = lambda _: False
    ) -> Obstacle | None:
        """Return the first obstacle to running the kernel in an environment, or None if it can run.

        Args:
            is_missing: returns whether a package is missing; by default, all packages count as installed.
        """
        if self.needs_cuda and environment.device != "cuda":
            return Obstacle(
                f"{self.name} needs CUDA, but the run uses the {environment.device.upper()}", self._hint()
            )
        if self.needs_cpu and environment.device == "cuda":
            return Obstacle(f"{self.name} is a reference for the CPU, but the run uses CUDA", self._hint())
        if environment.dtype not in self.dtypes:
            message = (
                f"{self.name} needs {' or '.join(self.dtypes)}, but the run computes in {environment.dtype}"
            )
            return Obstacle(message, self._hint("set trainer.mixed_precision to bf16"))
        for feature in environment.features:
            if feature not in self.features:
                return Obstacle(
                    f"{self.name} does not compute {feature}, which the model needs", self._hint()
                )
        message = self._head_size_limit(environment.head_size) or self._gpu_limit(environment.gpus)
        if message:
            return Obstacle(f"{self.name} {message}", self._hint())
        for package in filter(is_missing, self.packages):
            message = f"{self.name} needs {package.name}, which is not installed"
            return Obstacle(message, self._hint(install_line(package)))
        return None

    def _hint(self, edit: str = "") -> str:
        other = "train on a CPU" if self.family else f"set {self.KEY} to auto"
        return f"{edit}, or {other}" if edit else other

    def supports_head_size(self, size: float) -> bool:
        """Return whether the kernel supports this head size."""
        return size % self.head_multiple == 0 and size <= self.largest_head

    def _head_size_limit(self, size: float | None) -> str:
        if size is None or self.supports_head_size(size):
            return ""
        if self.head_multiple == self.largest_head:
            return f"needs a head size of {self.largest_head:g}, but the model's is {size:g}"
        limit = f"a multiple of {self.head_multiple} and at most {self.largest_head:g}"
        return f"needs a head size that is {limit}, but the model's is {size:g}"

    def _gpu_limit(self, gpus: tuple[Gpu, ...]) -> str:
        first, last = self.majors or (0, UNBOUNDED)
        for gpu in gpus:
            major, minor = gpu.capability
            if not first <= major <= last:
                needed = f"{first}.x" if first == last else f"{first}.x to {last}.x"
                return f"needs compute capability {needed}, but {gpu.label} has {major}.{minor}"
        return ""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AttentionKernel(Kernel):
    """Attention kernel for packed rows: tokens attend only within their segment.

    Attributes:
        loader: function as "module:name"; a leading dot means a module of `neobert/model`.
        is_varlen: if true, the function takes (q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen); else
            it takes (cu_seqlens, max_seqlen, num_tokens) and returns a function of (q, k, v).
        arguments: expected names of the function's first arguments, checked because releases differ.
        group: value of `model.attn_backend` that selects this kernel among others; empty if none does.
        is_automatic: `model.attn_backend: auto` may select this kernel.
        automatic_for: `auto` may select it for attention with one of these features, which few kernels have.
        longest_segment: `auto` may select it for rows of at most this many tokens (`attention-lengths`).
        is_deterministic: gradients on a GPU are bit-exact from run to run.
        block_module: module with the same attention for the qkv layout of this project's blocks, if any.
        max_row_length: maximum row length in tokens for which blocks prefer this kernel.
    """

    KEY = "model.attn_backend"

    loader: str = ""
    is_varlen: bool = True
    arguments: tuple[str, ...] = ()
    program: Program = "single"
    group: str = ""
    is_automatic: bool = False
    automatic_for: tuple[Feature, ...] = ()
    longest_segment: int = 0
    is_deterministic: bool = False
    block_module: str = ""
    max_row_length: float = UNBOUNDED


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BlockKernel(Kernel):
    """Kernels for the norms, matrix products and activations of the blocks.

    Attributes:
        replaces_blocks: the kernels replace the model's blocks in training, including attention.
        keys: config keys, each with the value that the kernels require.
        predicts: targets of the loss that the kernels train on, see TaskSpec; empty: any.
        width_multiple: the hidden size and the feed-forward width must be multiples of this.
        compiles: the kernels can be used with torch.compile.
        overlaps_exchange: the all-reduce of gradients may overlap with the backward pass.
        programs: module of this project that imports the optional packages; empty if none does.
        kept_hidden, kept_width: bf16 values per token that a block saves for its backward pass, in multiples
            of the hidden size and of the feed-forward width.
        kept: description of the saved values, for reports.
    """

    KEY = "model.kernel_backend"

    replaces_blocks: bool = False
    keys: tuple[tuple[str, object], ...] = ()
    predicts: str = ""
    width_multiple: int = 1
    compiles: bool = True
    overlaps_exchange: bool = True
    programs: str = ""
    kept_hidden: int = 0
    kept_width: int = 0
    kept: str = ""


FLASH = "flash_attn_varlen"
BY_SDPA: tuple[Feature, ...] = ("causal attention", "sliding windows", "grouped heads", "a scale of its own")
BY_FLASH: tuple[Feature, ...] = (*BY_SDPA, "a soft cap on scores")
BY_NSA: tuple[Feature, ...] = ("causal attention", "grouped heads", "selected blocks")
FLA_ARGUMENTS = (
    *("q", "k", "v", "g_cmp", "g_slc", "g_swa"),
    *("block_indices", "block_counts", "block_size", "window_size", "scale", "cu_seqlens"),
)
TORCH_ARGUMENTS = ("query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k")

# Rows are in the order in which `auto` tries them; sdpa is the fallback if none of them runs. Without
# `features` a row has bidirectional attention only, like the kernels of the blocks.
_ATTENTION = (
    AttentionKernel(
        name="triton_packed", packages=(TRITON,), dtypes=HALF[:1], majors=(8, 12), head_multiple=64,
        largest_head=64,
        loader="neobert.kernels.packed_heads:triton_packed", is_varlen=False, longest_segment=256,
        is_deterministic=True, block_module="neobert.kernels.attention", max_row_length=2048,
    ),
    AttentionKernel(
        name="flash_attn_4", packages=(FLASH_4,), majors=(9, 10), head_multiple=8, largest_head=128,
        loader=".flash4:flash4_varlen", group=FLASH, features=BY_SDPA,
        is_automatic=True, block_module="neobert.kernels.flash4",
    ),
    AttentionKernel(
        name="flash_attn_3", packages=(FLASH_3,), majors=(9, 9), head_multiple=8, largest_head=256,
        loader="flash_attn_interface:flash_attn_varlen_func", group=FLASH, features=BY_FLASH,
        is_automatic=True,
    ),
    AttentionKernel(
        name="flash_attn_2", packages=(FLASH_2,), majors=(8, 12), head_multiple=8, largest_head=256,
        loader="flash_attn:flash_attn_varlen_func", group=FLASH, features=BY_FLASH,
        is_automatic=True,
    ),
    AttentionKernel(
        name="torch_varlen", packages=(TORCH,), majors=(8, 12), head_multiple=8, largest_head=256,
        loader="torch.nn.attention.varlen:varlen_attn", arguments=TORCH_ARGUMENTS, is_automatic=True,
        features=BY_SDPA,
    ),
    AttentionKernel(
        name="flex", packages=(TRITON,), dtypes=ANY_DTYPE, loader=".flex:flex_in_documents", is_varlen=False,
        program="compiled", is_deterministic=True, features=BY_FLASH,
        automatic_for=("a soft cap on scores",),
    ),
    AttentionKernel(
        name="sdpa", needs_cuda=False, dtypes=ANY_DTYPE, loader=".attention:segmented_sdpa",
        is_varlen=False, program="loop", features=BY_FLASH,
    ),
    AttentionKernel(
        name="nsa_reference", family="nsa", needs_cuda=False, needs_cpu=True, dtypes=ANY_DTYPE,
        loader="neobert.families.nsa.reference:attend", is_varlen=False, program="loop", features=BY_NSA,
        is_deterministic=True,
    ),
    AttentionKernel(
        name="nsa_fla", family="nsa", packages=(FLA, TRITON), dtypes=HALF[:1], majors=(8, 12),
        head_multiple=16, largest_head=256, loader="fla.ops.nsa.parallel:parallel_nsa",
        arguments=FLA_ARGUMENTS, is_varlen=False, features=BY_NSA,
    ),
)  # fmt: skip

_OWN_KEYS = (
    ("model.attn_backend", "auto"),
    ("datacollator.pack_sequences", True),
    ("trainer.masked_logits_only_loss", True),
    ("trainer.gradient_checkpointing", False),
    ("model.rope", True),
    ("model.rms_norm", True),
    ("model.hidden_act", "swiglu"),
)
_BLOCKS = (
    # Products of `fused` wait for multiprocessors that NCCL holds, so it exchanges after its backward pass.
    BlockKernel(
        name="fused", packages=(TRITON, QUACK), dtypes=HALF[:1], majors=(9, 9), head_multiple=64,
        largest_head=64, replaces_blocks=True, keys=_OWN_KEYS, predicts="masked", width_multiple=64,
        overlaps_exchange=False, programs="neobert.kernels.epilogues", kept_hidden=6, kept_width=3,
        kept="two residual streams, q, k and v, the attention output, gate, up and their product, in bf16",
    ),
    BlockKernel(
        name="triton", packages=(TRITON,), dtypes=HALF[:1], head_multiple=64, largest_head=64,
        replaces_blocks=True, keys=_OWN_KEYS, predicts="masked",
        kept_hidden=8, kept_width=3,
        kept="two residual streams, their norms, rotated q, k, v, the attention output, gate, up and their "
        "product, in bf16",
    ),
    BlockKernel(name="liger", packages=(LIGER,), dtypes=ANY_DTYPE, compiles=False),
    BlockKernel(name="torch", packages=(TORCH,), needs_cuda=False, dtypes=ANY_DTYPE),
)  # fmt: skip

ATTENTION = {kernel.name: kernel for kernel in _ATTENTION}
BLOCKS = {kernel.name: kernel for kernel in _BLOCKS}
OWN_KERNELS = tuple(name for name, kernel in BLOCKS.items() if kernel.replaces_blocks)
BLOCK_CHOICES = ("auto", *reversed(BLOCKS))


def find_attention_kernels(
    choice: str, features: tuple[Feature, ...] = (), row_length: int | None = None
) -> tuple[AttentionKernel, ...]:
    """Return the kernels that a value of `model.attn_backend`, or a model family, selects, in order.

    `features`: what the model's attention needs of its kernel. `row_length`: longest row in tokens; None if
    unknown.
    """

    def is_automatic(kernel: AttentionKernel) -> bool:
        is_short = row_length is not None and row_length <= kernel.longest_segment
        return kernel.is_automatic or is_short or not {*kernel.automatic_for}.isdisjoint(features)

    return tuple(
        kernel
        for kernel in ATTENTION.values()
        if kernel.loader
        and (
            choice in (kernel.family or kernel.name, kernel.group)
            or (choice == "auto" and is_automatic(kernel))
        )
    )


ATTENTION_CHOICES = tuple(
    dict.fromkeys(
        ["auto", *(each.group or each.name for each in _ATTENTION if each.loader and not each.family)]
    )
)
"""Allowed values of `model.attn_backend`."""


def block_attention(row_length: int) -> tuple[AttentionKernel, ...]:
    """Return the attention kernels for this project's blocks, in order of preference for this row length."""
    kernels = [kernel for kernel in _ATTENTION if kernel.block_module]
    return tuple(sorted(kernels, key=lambda kernel: row_length > kernel.max_row_length))
