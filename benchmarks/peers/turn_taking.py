"""Training runs in child processes that take turns on one device: the same power limit applies to all.

A child reads requests from standard input, a line of JSON each: {"steps": N, "is_profiled": bool}. It trains
this number of steps and answers with their seconds, useful tokens, peak memory, the graphs that torch.compile
has made since the start and, if profiled, kernels.
Between turns it holds weights and optimizer state only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from neobert.bench.arm import redirect_standard_output
from neobert.train import exit_process
from peers.kernels import DenseAttentionError, profile_kernels, require_fused_attention, summarize_kernels
from peers.turns import free_memory, synchronize

Answer = dict[str, Any]
GIB = 2**30
BENCHMARKS = Path(__file__).parents[1]


class TurnTaker:
    """The child's side: `begin` waits for a turn, `steps_ended` ends the turn after its last step."""

    def __init__(self, count_tokens: Callable[[], int], num_layers: int, *, is_peer: bool) -> None:
        """Start the turn-taker; `count_tokens` returns the useful tokens since the start."""
        self._answers = redirect_standard_output()
        self._count_tokens, self._num_layers, self._is_peer = count_tokens, num_layers, is_peer
        self._left = 0

    def begin(self) -> int:
        """Wait for a request; return its number of steps. At the end of the input the process ends."""
        line = sys.stdin.readline()
        if not line:
            exit_process(0)
        request = json.loads(line)
        self._steps = self._left = int(request["steps"])
        self._profile = ExitStack()
        self._kernels = self._profile.enter_context(profile_kernels()) if request["is_profiled"] else None
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        synchronize()
        self._tokens, self._started_s = self._count_tokens(), time.perf_counter()
        return self._steps

    def steps_ended(self, count: int = 1) -> int:
        """Count finished steps; return the steps left in this turn, or wait for the next turn's number."""
        self._left -= count
        if self._left:
            return self._left
        synchronize()
        seconds = time.perf_counter() - self._started_s
        self._profile.close()
        answer: Answer = {
            "steps": self._steps,
            "seconds": seconds,
            "tokens": self._count_tokens() - self._tokens,
            "graphs": count_compiled_graphs(),
        }
        if torch.cuda.is_available():
            answer["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 2)
        if self._kernels is not None:
            answer |= {"kernels": summarize_kernels(self._kernels), "refused": self._attention_error()}
        free_memory()
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()
        return self.begin()

    def _attention_error(self) -> str:
        try:
            if self._is_peer:
                require_fused_attention(self._kernels or [], self._num_layers)
        except DenseAttentionError as error:
            return str(error)
        return ""


def count_compiled_graphs() -> int:
    """Return the number of graphs torch.compile has built in this process, without importing torch."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return int(compiler.counters["stats"]["unique_graphs"]) if compiler else 0


class ArmProcess:
    """Child process that runs a module of this package, as seen by the parent."""

    def __init__(self, module: str, arguments: Sequence[str], log: Any, patience_s: float = 600.0) -> None:
        """Start the child. `patience_s`: time limit of a response, after which the child is killed."""
        self._patience_s = patience_s
        paths = [str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.{module}", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def send(self, steps: int, *, is_profiled: bool = False) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"steps": steps, "is_profiled": is_profiled}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `receive` reports it

    def receive(self) -> Answer:
        """Wait for the response. Raises `RuntimeError` if the child exited, or was killed after a hang."""
        assert self._process.stdout is not None
        timer = threading.Timer(self._patience_s, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if not line:
            code = self._process.wait()
            hung = f", after {self._patience_s:.0f} s without an answer" if code == -signal.SIGKILL else ""
            raise RuntimeError(f"ended with exit code {code}{hung}")
        return dict(json.loads(line))

    def call(self, steps: int, *, is_profiled: bool = False) -> Answer:
        self.send(steps, is_profiled=is_profiled)
        return self.receive()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
