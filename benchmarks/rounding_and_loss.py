"""Loss of packed bf16 training with one rounding changed at a time, against fp32.

    python benchmarks/rounding_and_loss.py WORK OUT STEPS SIDE...

The sides of `loss_parity.py` on an H200, several at a time, each in its own process. SIDE is a form, then
options after dashes:

  unpacked     fp32, eager, one document per row
  packed       bf16, compiled, Triton kernels as they are
  modules      bf16 under autocast on the model's own modules
  r32          as packed, residual stream and its gradient in fp32
  fwd16        as r32, the stream rounded to the nearest bf16 number
  bwd16        as r32, the gradient of the stream rounded to the nearest bf16 number
  -scaled      initial weights `scaled`, not `published`
  -drawN       every initial weight is multiplied by 1 + u, u uniform in [-1, 1] / 512 by seed N: what chance does
"""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import loss_parity as lp
import torch
import torch.nn.functional as F

import neobert.objectives.packed_encoder as pe
from neobert.kernels.feed_forward import feed_forward
from neobert.kernels.linear import linear

LOW, WIDE = torch.bfloat16, torch.float32


# An operator of its own: the compiler removes a conversion to bf16 and back.
@torch.library.custom_op("rounding::nearest", mutates_args=())
def nearest(x: torch.Tensor) -> torch.Tensor:
    return x.to(LOW).to(WIDE)


@nearest.register_fake
def _(x):
    return torch.empty_like(x)


class RoundForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return nearest(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class RoundBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return nearest(grad.contiguous())


ROUNDINGS = {"r32": lambda x: x, "fwd16": RoundForward.apply, "bwd16": RoundBackward.apply}


def norm(x, weight, eps):
    return F.rms_norm(x, weight.shape, weight.to(WIDE), eps).to(LOW)


def widen_stream(rounded):
    """Keep the residual stream of the Triton blocks in fp32; `rounded` is applied to each sum."""

    def step(block, stream, rotary, segments, max_seqlen, num_heads, eps):
        x, branch = stream
        weights = pe.block_weights(block)
        if branch is not None:
            x = rounded(x + branch.to(WIDE))
        normed = norm(x, weights.attention_norm, eps)
        attended = pe._attend(normed, weights.qkv, rotary, segments, max_seqlen, num_heads)
        x = rounded(x + linear(attended, weights.wo).to(WIDE))
        return x, feed_forward(norm(x, weights.ffn_norm, eps), weights.w12, weights.w3)

    def final_states(self, hidden):
        last = self.model.base_model.layer_norm
        return norm(hidden, last.weight, self.model.config.norm_eps)

    pe.COMPUTE = WIDE
    pe.BLOCK_STEPS["triton"] = pe.BlockSteps(
        WIDE, lambda x, _: (x, None), step, lambda stream: stream[0] + stream[1].to(WIDE)
    )
    pe.KernelObjective.final_states = final_states


def perturb_weights(seed):
    real = lp.assemble

    def assemble(*arguments):
        trainer = real(*arguments)
        generator = torch.Generator(device="cuda").manual_seed(seed)
        with torch.no_grad():
            for weight in trainer.task.backbone.model.parameters():
                draw = torch.rand(weight.shape, generator=generator, device=weight.device)
                weight.mul_(1 + 2.0**-9 * (2 * draw - 1))
        return trainer

    lp.assemble = assemble


def train(name, work, steps):
    form, *options = name.split("-")
    config = lp.packed_config(work, steps)
    init = "scaled" if "scaled" in options else "published"
    config = replace(config, model=replace(config.model, kernel_backend="triton", init=init))
    if form in ROUNDINGS:
        widen_stream(ROUNDINGS[form])
    for option in options:
        if option.startswith("draw"):
            perturb_weights(int(option.removeprefix("draw")))
    (work / name).mkdir(parents=True, exist_ok=True)
    began = time.time()
    found = lp.train_side(form if form in lp.FORMS else "packed", config, work / name)
    return found | {"seconds": time.time() - began}


def main():
    work, out, steps = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), int(sys.argv[3])
    if sys.argv[4] == "--side":
        print(json.dumps(train(sys.argv[5], work, steps)))
        return
    lp.prepare(lp.packed_config(work, steps))
    results = {}

    def run(name):
        command = [sys.executable, __file__, str(work), str(out), str(steps), "--side", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results[name] = json.loads(done.stdout.splitlines()[-1])
        (out / "rounding-and-loss.json").write_text(json.dumps(results))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, sys.argv[4:]))


main()
