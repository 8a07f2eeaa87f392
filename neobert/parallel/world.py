"""Rank, device, and communication with the other ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from math import ceil, gcd
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.parallel import sharding
from neobert.parallel.deferred_weights import DeferredWeights, defer_weights
from neobert.plan.strategies import FOREIGN_HINT, foreign_strategies
from neobert.precision.recipe import Recipe
from neobert.precision.table import run_recipe
from neobert.units import BYTES_PER_MIB

T = TypeVar("T")

AUTOCAST = {"bfloat16": "bf16", "float32": "no"}
"""Value of accelerate's `mixed_precision` by compute dtype."""
# Tokenizing a large text takes hours; torch gives up on a silent rank after half an hour.
PREPARATION_LIMIT = timedelta(days=7)


class World:
    """Process group of a run from torchrun's environment, or a single process without it.

    Host values are exchanged through gloo, without waiting for the GPU; gradients through the backend of the
    device. All ranks must call the same methods in the same order, and none after a failure.

    Attributes:
        mesh: the ranks of several processes, which read different data and average their gradients; None in
            a single process. With replicas of a sharded model, its dimensions are `replica` and `shard`, else
            it has only `dp`.
        num_shards: number of parts of the model; of ranks with the same part, the first one writes it in a
            save.
        reshards: sharded parameters are freed after their forward (see `prepare`).
        dp_rank, dp_size: index of this rank's share of the data, and number of shares. Files of a process are
            named by `rank`.
    """

    def __init__(self, recipe: Recipe, mode: str = "replicated", replicas: int = 1) -> None:
        reject_accelerate_settings(os.environ)
        self._buckets = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
        self._accelerator = Accelerator(
            mixed_precision=AUTOCAST[recipe.dtype],
            cpu=not torch.cuda.is_available(),
            kwargs_handlers=[self._buckets],
        )
        self.device = self._accelerator.device
        self.rank: int = self._accelerator.process_index
        self.size: int = self._accelerator.num_processes
        self.mode = mode if self.size > 1 else "replicated"
        self.recipe, self.reshards = recipe, False
        self.compute_dtype: torch.dtype = getattr(torch, recipe.dtype)
        is_on_gpu = self.device.type == "cuda"
        self._host_group = dist.new_group(backend="gloo") if self.size > 1 and is_on_gpu else None
        self._patient_group = (
            dist.new_group(backend="gloo", timeout=PREPARATION_LIMIT) if self.size > 1 else None
        )
        self.mesh: DeviceMesh | None = None
        self.dp_rank: int = self.rank
        self.dp_size: int = self.size
        self.num_shards: int = self.size if self.is_sharded else 1
        replicas = gcd(replicas, self.size)  # checks of one node run on some of the ranks
        if self.size > 1 and self.is_sharded and 1 < replicas < self.size:
            self.num_shards = self.size // replicas
            sizes = (replicas, self.num_shards)
            self.mesh = init_device_mesh(self.device.type, sizes, mesh_dim_names=("replica", "shard"))
        elif self.size > 1:
            self.mesh = init_device_mesh(self.device.type, (self.size,), mesh_dim_names=("dp",))

    @classmethod
    def from_config(cls, config: RunConfig) -> World:
        """Join the ranks of a run with the precision, parallelism and replicas of its config.

        Raises `ProjectError` HST009 like `reject_accelerate_settings`.
        """
        return cls(run_recipe(config), config.distributed.mode, config.distributed.replicas)

    @property
    def is_main(self) -> bool:
        """Return whether this is rank 0, which writes the shared files."""
        return self.rank == 0

    @property
    def is_on_gpu(self) -> bool:
        """Return whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def is_sharded(self) -> bool:
        """Return whether parameters are sharded over the ranks (FSDP2), not replicated."""
        return self.mode == "fsdp2"

    @property
    def device_memory_mib(self) -> float | None:
        """Return the memory of the GPU in MiB, or None on a CPU."""
        if not self.is_on_gpu:
            return None
        return torch.cuda.get_device_properties(self.device).total_memory / BYTES_PER_MIB

    def defer_weights(self) -> AbstractContextManager[DeferredWeights | None]:
        """Return a context for building a model: it defers the weights if sharded, else yields None."""
        return defer_weights() if self.is_sharded else nullcontext()

    def prepare(
        self,
        module: nn.Module,
        *,
        overlaps_exchange: bool = True,
        reshards: bool = False,
        gathers_copies: bool = False,
        weights: DeferredWeights | None = None,
        is_fresh: bool = True,
    ) -> nn.Module:
        """Move a module to the device; with several ranks, wrap it in DDP or shard it with FSDP2.

        Build the optimizer afterwards, because sharding replaces the parameters.

        Args:
            overlaps_exchange: reduce gradients during the backward pass, and not all at once after it.
            reshards, gathers_copies: see `sharding.shard`.
            weights: initial weights of a module that was built without memory; each rank takes its rows.
                None: the module has weights, equal on all ranks if it is to be sharded.
            is_fresh: fill in `weights`; if False, they stay uninitialized, and a checkpoint is loaded next.
        """
        if self.mesh is None or not self.is_sharded:
            if not overlaps_exchange:
                self._buckets.bucket_cap_mb = gradients_mib(module)
            # The objective is compiled in parts already. DDP's way, to cut a graph where a bucket is full,
            # would miss the parameters that an operator takes as a list.
            torch._dynamo.config.optimize_ddp = False
            return self._accelerator.prepare_model(
                module, evaluation_mode=self.size == 1
            )  # torchrun may start one
        if weights is None:
            module.to(self.device)
        else:
            weights.record_module(module)
        self._accelerator.prepare_model(module, device_placement=False, evaluation_mode=True)
        self.reshards = reshards
        self.recipe.before_sharding(module)
        sharding.shard(
            module,
            self.mesh,
            self.recipe,
            overlaps_exchange=overlaps_exchange,
            reshards=reshards,
            gathers_copies=gathers_copies,
        )
        if weights is not None:
            sharding.move_to_device(module, self.device)
            if is_fresh:
                weights.fill(lambda name, values: sharding.copy_own_rows(module.get_parameter(name), values))
            weights.check_nothing_lost(module)
        return module

    def autocast(self) -> AbstractContextManager[Any]:
        """Return an autocast context in the run's precision, for calls other than the prepared `forward`."""
        return self._accelerator.autocast()

    def gradient_sync(self, module: nn.Module, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context that reduces gradients only if `is_last`: in the last microbatch of a step."""
        if isinstance(module, FSDPModule):
            sharding.set_communication(module, is_last=is_last, reduces=is_last or self.reshards)
        if is_last or not isinstance(module, DistributedDataParallel):
            return nullcontext()
        return module.no_sync()

    def gradient_norm(self, module: nn.Module) -> Tensor:
        """Return the total norm of all gradients of the module, equal on all ranks."""
        return self._total_norm(sharding.list_gradients(module.parameters()))

    @torch.no_grad()
    def weight_norm(self, module: nn.Module) -> Tensor:
        """Return the total norm of all parameters of the module, equal on all ranks."""
        return self._total_norm(list(module.parameters()))

    def _total_norm(self, tensors: Sequence[Tensor]) -> Tensor:
        if self.mesh is None or not self.is_sharded:
            return get_total_norm(tensors)
        return sharding.total_norm(tensors, self.size // self.num_shards)

    def evaluation_context(self, module: nn.Module) -> AbstractContextManager[None]:
        """Return a context for `Objective.evaluate`, which all ranks must call equally often.

        Parameters that these calls gathered are freed at the end.
        """
        return sharding.free_gathered_parameters(module) if self.is_sharded else nullcontext()

    def gather_parameters_outside_blocks(
        self, module: nn.Module, ends: Sequence[nn.Module]
    ) -> AbstractContextManager[None]:
        """Return a context for calls of parts of a module: `sharding.gather_parameters_outside_blocks`."""
        return sharding.gather_parameters_outside_blocks(module, ends) if self.is_sharded else nullcontext()

    def sum_over_ranks(self, values: Sequence[int]) -> list[int]:
        """Sum each integer over all ranks, on the host."""
        if self.size == 1:
            return list(values)
        totals = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(totals, group=self._host_group)
        return totals.tolist()

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks on the device, in place, and return it."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather_rows(self, rows: Tensor) -> list[Tensor]:
        """Return the rows [n, ...] of every rank, in rank order; n may differ between ranks.

        This rank's rows are the argument itself, with its graph; other rows carry no gradient.
        """
        if self.size == 1:
            return [rows]
        counts = self.sum_over_ranks([len(rows) if rank == self.rank else 0 for rank in range(self.size)])
        if not any(counts):
            return [rows for _ in counts]
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows.detach()
        found = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(found, padded)
        return [
            rows if rank == self.rank else each[:count]
            for rank, (each, count) in enumerate(zip(found, counts, strict=True))
        ]

    def gather(self, payload: bytes) -> list[bytes]:
        """Gather the payloads of all ranks, in rank order, on rank 0; other ranks get an empty list."""
        if self.size == 1:
            return [payload]
        gathered: list[Any] | None = [None] * self.size if self.is_main else None
        dist.gather_object(payload, gathered, group=self._host_group)
        return gathered or []

    def on_main(self, decide: Callable[[], T]) -> T:
        """Compute a value on rank 0 and broadcast it. If rank 0 fails, torchrun ends the other ranks."""
        if self.size == 1:
            return decide()
        answer = [decide() if self.is_main else None]
        dist.broadcast_object_list(answer, group=self._host_group)
        return answer[0]  # type: ignore[return-value]

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the `with` block on rank 0 first, then on the other ranks, which use the files it wrote.

        If rank 0 fails, the other ranks wait until torchrun ends them.
        """
        if not self.is_main:
            self._wait_without_timeout()
        yield
        if self.is_main:
            self._wait_without_timeout()

    def _wait_without_timeout(self) -> None:
        if self.size > 1:
            dist.barrier(group=self._patient_group)

    def wait_for_all(self) -> None:
        """Wait at a barrier of all ranks."""
        if self.size > 1:
            dist.barrier(group=self._host_group)


def gradients_mib(module: nn.Module) -> int:
    """Return the MiB, rounded up, of one DDP bucket with a gradient for every parameter of a module."""
    return ceil(sum(each.numel() * each.element_size() for each in module.parameters()) / BYTES_PER_MIB)


def reject_accelerate_settings(environment: Mapping[str, str]) -> None:
    """Raise `ProjectError` HST009 if accelerate's environment variables set a parallelism or a device."""
    for name in foreign_strategies(environment):
        message = f"the environment enables {name}, which the trainer does not support"
        raise ProjectError("HST009", message, FOREIGN_HINT, "distributed.mode")


def use_all_cores() -> None:
    """Set torch's CPU threads to the cores available to this process, divided by the ranks on this node.

    Does nothing if OMP_NUM_THREADS is set, which torch reads.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
