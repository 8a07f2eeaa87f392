"""The training step on a CUDA device: the same losses on every kernel, one graph, no wait for the device."""

import random

import pytest
import torch

from neobert.config import from_dict
from neobert.families.neobert.build import backbone_from_model
from neobert.kernels.vocabulary import embedding
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.objectives import StepKernels, TokenObjective, resolve_step_kernels
from neobert.objectives.objective import target_capacity
from neobert.objectives.packed_encoder import KernelObjective
from neobert.optim import build_optimizer
from neobert.parallel import World
from neobert.precision.recipe import BF16
from neobert.training.loop.assembly import assemble
from neobert.training.loop.session import run_session
from neobert.training.loop.signals import Signals
from neobert.training.loop.steps import run_step
from tests.gpu.obstacles import flash4_obstacle, fused_obstacle
from tests.training.conftest import corpus_of, read_lines, write_config

HIDDEN, HEADS, INTERMEDIATE, VOCAB, TOKENS, SLOTS = 768, 12, 3072, 1024, 2048, 48
MASKED = 0.2


FUSED = pytest.param("fused", marks=pytest.mark.skipif("fused_obstacle()", reason="needs quack on Hopper"))
KERNELS = ["triton", FUSED]
pytestmark = [
    pytest.mark.usefixtures("fresh_accelerator", "fresh_compiler"),
    pytest.mark.filterwarnings("ignore"),  # of the compiler and of foreign kernels
]


def make_model(attn_backend: str) -> NeoBERTLMHead:
    torch.manual_seed(1)
    shape = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": INTERMEDIATE}
    config = NeoBERTConfig(vocab_size=VOCAB, num_hidden_layers=2, attn_backend=attn_backend, **shape)
    return NeoBERTLMHead(config).cuda()


def make_batch(seed: int) -> dict[str, object]:
    """Documents of 3 to 200 tokens whose next token follows from the last: something to learn."""
    draw = random.Random(seed)
    lengths: list[int] = []
    while (left := TOKENS - sum(lengths)) > 0:
        lengths.append(min(left, draw.randint(3, 200)))
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    bounds = torch.cat([bounds, bounds.new_full((SLOTS - len(lengths),), TOKENS)]).to(torch.int32)
    ids = torch.cat([(draw.randint(5, 40) + torch.arange(length)) % 90 + 5 for length in lengths])
    is_target = torch.rand(TOKENS, generator=torch.Generator().manual_seed(seed)) < MASKED
    return {
        "num_targets": int(is_target.sum()),
        "labels": torch.where(is_target, ids, -100).cuda(),
        "input_ids": torch.where(is_target, 4, ids).cuda(),
        "position_ids": torch.cat([torch.arange(length) for length in lengths]).cuda(),
        "attention_mask": None,
        "cu_seqlens": bounds.cuda(),
        "max_seqlen": 200,
    }


def make_objective(name: str, attention: str = "triton_packed") -> TokenObjective:
    capacity = target_capacity(TOKENS, MASKED)
    if name == "torch":
        return TokenObjective(backbone_from_model(make_model("torch_varlen")), True, capacity)
    return KernelObjective(
        backbone_from_model(make_model("sdpa")), StepKernels(name, attention, "sdpa", ""), capacity
    )


def losses(objective: TokenObjective, steps: int, dtype: torch.dtype) -> list[float]:
    optimizer = build_optimizer(from_dict({}).optimizer, objective)
    seen = []
    for step in range(steps):
        batch = make_batch(step)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype == torch.bfloat16):
            loss = objective(**batch) / batch["num_targets"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen.append(loss.item())
    return seen


@pytest.mark.parametrize("name", [*KERNELS, "torch"])
def test_losses_are_those_of_eager_fp32(name):
    exact = losses(TokenObjective(backbone_from_model(make_model("sdpa")), True), 10, torch.float32)
    objective = make_objective(name)
    objective.compile_loss("inductor")
    seen = losses(objective, 10, torch.bfloat16)
    assert exact[-1] < 0.9 * exact[0]
    assert seen == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("name", KERNELS)
def test_flash_attention_4_gives_the_losses_of_this_projects_attention(name):
    if flash4_obstacle():
        pytest.skip(flash4_obstacle())
    wanted = losses(make_objective(name), 3, torch.bfloat16)
    seen = losses(make_objective(name, "flash_attn_4"), 3, torch.bfloat16)
    assert seen == pytest.approx(wanted, rel=0.002)


@pytest.mark.parametrize("name", [*KERNELS, "torch"])
def test_one_graph_and_no_recompiling(name):
    objective = make_objective(name)
    objective.compile_loss("inductor")
    counters = torch._dynamo.utils.counters
    losses(objective, 2, torch.bfloat16)
    graphs = counters["stats"]["unique_graphs"]
    losses(objective, 8, torch.bfloat16)
    assert counters["stats"]["unique_graphs"] == graphs
    assert not counters["graph_break"]


@pytest.mark.parametrize("name", KERNELS)
def test_a_compiled_step_repeats_to_the_bit(name):
    objective, batch, seen = make_objective(name), make_batch(0), []
    objective.compile_loss("inductor")
    for _ in range(3):
        objective.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            objective(**batch).backward()
        seen.append({name: each.grad.clone() for name, each in objective.named_parameters()})
    for again in seen[1:]:
        assert [name for name in seen[0] if not torch.equal(again[name], seen[0][name])] == []


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_cuda_graphs_give_the_same_gradients(name, is_compiled):
    def summed(objective):
        seen = []
        for step in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            for number in (2 * step, 2 * step + 1):
                with torch.autocast("cuda", torch.bfloat16):
                    objective(**make_batch(number)).backward()
            seen.append([each.grad.clone() for each in objective.parameters()])
            objective.zero_grad(set_to_none=True)
        return seen

    plain, replayed = make_objective(name), make_objective(name)
    replayed.load_state_dict(plain.state_dict())
    if is_compiled:
        plain.compile_loss("inductor")
        replayed.compile_loss("inductor", cuda_graphs=True)
    else:
        replayed.record_cuda_graphs()
    counters = torch._dynamo.utils.counters["inductor"]
    before = counters["cudagraph_skips"]
    pairs = zip(summed(plain), summed(replayed), strict=True)
    assert all(torch.equal(a, b) for step in pairs for a, b in zip(*step, strict=True))
    assert counters["cudagraph_skips"] == before


@pytest.mark.parametrize("num_ids", [2048, 65536])  # torch sorts in another way from 3073 on
def test_a_lookup_repeats_is_that_of_torch_and_waits_for_nothing(num_ids, waiting_is_an_error):
    ids = torch.randint(0, 500, (num_ids,), device="cuda")
    module = torch.nn.Embedding(VOCAB, HIDDEN, padding_idx=0).cuda()
    grad = torch.randn(num_ids, HIDDEN, device="cuda")
    look_up = torch.compile(lambda ids, weight: embedding(ids, weight, 0), fullgraph=True)
    (wanted,) = torch.autograd.grad(module(ids), module.weight, grad)
    torch.autograd.grad(look_up(ids, module.weight), module.weight, grad)
    with waiting_is_an_error():
        found = [torch.autograd.grad(look_up(ids, module.weight), module.weight, grad)[0] for _ in range(5)]
    assert all(torch.equal(each, wanted) for each in found)


@pytest.mark.parametrize("name", [*KERNELS, "torch"])
def test_an_evaluation_is_that_of_eager_and_compiles_no_step_again(name):
    plain, objective = make_objective(name), make_objective(name)
    objective.compile_loss("inductor")
    counters, graphs = torch._dynamo.utils.counters, 0
    for turn in range(3):
        losses(objective, 1, torch.bfloat16)
        with torch.autocast("cuda", torch.bfloat16):
            plain.load_state_dict(objective.state_dict())
            score, wanted = (each.eval().evaluate(**make_batch(turn)) for each in (objective, plain))
        objective.train()
        assert score.loss_sum.item() == pytest.approx(wanted.loss_sum.item(), rel=0.002)
        graphs = counters["stats"]["unique_graphs"] if turn == 0 else graphs
        assert counters["stats"]["unique_graphs"] == graphs
    assert not counters["graph_break"]


@pytest.mark.parametrize("name", [*KERNELS, "torch"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_each_block_tells_the_attention_that_it_ran(name, is_compiled):
    objective = make_objective(name)
    if is_compiled:
        objective.compile_loss("inductor")
    losses(objective, 2, torch.bfloat16)
    ran = "torch_varlen" if name == "torch" else "triton_packed"
    assert objective.attention_used == {0: ran, 1: ran}


@pytest.mark.parametrize("name", KERNELS)
def test_no_target_is_lost_beyond_the_capacity(name):
    batch = make_batch(0)
    batch["labels"] = torch.randint(5, 95, (TOKENS,), device="cuda")
    batch["num_targets"] = TOKENS
    exact = TokenObjective(backbone_from_model(make_model("sdpa")), True)(**batch).item()
    assert make_objective(name)(**batch).item() == pytest.approx(exact, rel=0.01)


def write_run(folder, **changes):
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=4)) for _ in range(80)]
    texts = [" ".join(draw.choices(words, k=draw.randint(5, 150))) for _ in range(400)]
    shape = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": INTERMEDIATE}
    config = from_dict(
        {
            "model": {"num_hidden_layers": 2, "max_position_embeddings": 256, **shape, **changes},
            "tokenizer": {"vocab_size": 256},
            "dataset": {**corpus_of(folder, texts), "max_seq_length": 256, "eval_samples": 20},
            "trainer": {
                "output_dir": str(folder),
                "max_steps": 12,
                "per_device_train_batch_size": 8,
                "gradient_accumulation_steps": 2,
                "torch_compile": True,
                "logging_steps": 4,
                "eval_steps": 6,
            },
        }
    )
    write_config(folder, config)
    return config


@pytest.mark.parametrize("name", [*KERNELS, "torch"])
def test_a_step_never_waits_for_the_device(name, tmp_path, waiting_is_an_error):
    config = write_run(tmp_path, kernel_backend=name)
    trainer = assemble(config, tmp_path, World(BF16), Signals(), None)
    try:
        assert next(trainer.batches).input_ids.is_pinned()
        for _ in range(3):
            run_step(trainer)
        with waiting_is_an_error():
            for _ in range(3):
                run_step(trainer)
        trainer.guard.check()
    finally:
        trainer.batches.close()


def test_a_planted_wait_is_caught(waiting_is_an_error):
    value = torch.ones((), device="cuda")
    with waiting_is_an_error(), pytest.raises(RuntimeError, match="synchroniz"):
        value.item()


@pytest.mark.parametrize("name", KERNELS)
def test_a_whole_run_says_what_ran(name, tmp_path):
    config = write_run(tmp_path, kernel_backend=name)
    assert run_session(config, tmp_path, Signals()) == 0
    lines = read_lines(tmp_path / "metrics.jsonl")
    trained = [line["train/loss"] for line in lines if "train/loss" in line]
    assert trained[-1] < trained[0]
    assert [line["step"] for line in lines if line.get("eval/loss", 0.0) > 0] == [0, 6, 12]
    beat = read_lines(tmp_path / "heartbeat_rank0.jsonl")[-1]
    assert (beat["attention_kernel"], beat["compute_dtype"]) == ("triton_packed", "bfloat16")


def test_auto_takes_this_projects_kernels():
    wanted = "triton" if fused_obstacle() else "fused"
    assert resolve_step_kernels(from_dict({}), "cuda", torch.bfloat16).name == wanted
    assert resolve_step_kernels(from_dict({}), "cuda", torch.float32).name in ("torch", "liger")
