"""Content of the run file that `init` writes: sizes, values by device, comments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.commands.held_out_documents import HELD_OUT, HOLDING_OUT, held_out_keys
from launcher.commands.run_file_entries import Entry, entries_yaml
from neobert.data.sources.rows import TEXT_SETTING

Device = Literal["cpu", "gpu"]
SizeName = Literal["tiny", "small", "base"]
BYTES_PER_TOKEN = 4
"""Typical value for English text in WordPiece; used only for comments in the run file."""
VOCABULARY_BY_TEXT = ((4e6, 4096), (40e6, 8192), (400e6, 16384))
BERT_VOCABULARY = 30522
TRAINED_SHARE = 0.95
"""Share of the documents to train on: 1 - dataset.validation_split of the run file."""
MAX_PASSES, CAUSAL_PASSES, MIN_STEPS = 20, 4, 20
"""Maximum passes over a small text: an encoder gets new masks in each pass, a decoder the same tokens. On
3,000 lines, the held-out loss of a tiny decoder was 5.3 nats after 4 passes, 5.8 after 7, and rose to 7.2
before 20."""
COMPILED_FLOPS = 5e16
"""Training FLOPs from which compiling packed rows saves time. On an H100, ModernBERT (149M parameters)
compiles in 62 s, trains 1.9 times as fast, and saves time from 2e16 FLOPs; Qwen2 (494M) compiles in 85 s,
trains 1.8 times as fast, and saves time from 5e16."""
TOKENIZER = "one is trained on the text first; or set path: FOLDER (a tokenizer.json)"
COMPILED = "a minute before the first step, then about twice as fast"


@dataclass(frozen=True, slots=True)
class StarterSize:
    """Size of a model, with a suitable sequence length, learning rate on a CPU and description (`gloss`)."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_seq_length: int
    lr: float
    gloss: str


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Length and batch size of a first run: `accumulation` microbatches of `rows` rows per step."""

    max_steps: int
    rows: int
    accumulation: int = 1


SIZES: dict[SizeName, StarterSize] = {
    "tiny": StarterSize(192, 4, 6, 768, 128, 8e-3, "to try out the whole workflow"),
    "small": StarterSize(384, 12, 6, 1536, 256, 4e-3, "width of MiniLM"),
    "base": StarterSize(768, 12, 12, 3072, 512, 4e-3, "shape of BERT-base"),
}
PACES: dict[tuple[Device, SizeName], BatchShape] = {
    ("cpu", "tiny"): BatchShape(800, 8),
    ("cpu", "small"): BatchShape(1000, 8),
    ("cpu", "base"): BatchShape(250, 2, 4),  # Muon's products take as long as 3,000 tokens
    ("gpu", "tiny"): BatchShape(2000, 128),
    ("gpu", "small"): BatchShape(5000, 64),
    ("gpu", "base"): BatchShape(20000, 32, 4),
}
DEVICES: dict[Device, str] = {"cpu": "this machine's processor", "gpu": "one GPU"}


@dataclass(frozen=True, slots=True)
class StarterInputs:
    """Inputs that determine the content of the run file.

    Attributes:
        text: path; empty for a dataset.
        dataset: name of a dataset; empty for a path.
        num_bytes: size of the files of the text; None if unknown.
        is_plain: whether this is the size of the text, and not of compressed or binary files.
        has_evaluation: whether the text has files for evaluation, so that no document is held out.
        documents: number of documents of the text; None if unknown.
        is_by_line: whether each line of the text is a document.
        causal_task: task of a causal model; None for an encoder.
        text_column: column of the text; None for the usual names.
    """

    text: str
    dataset: str
    size: SizeName
    device: Device
    num_bytes: int | None
    is_plain: bool = True
    has_evaluation: bool = False
    documents: int | None = None
    is_by_line: bool = False
    causal_task: str | None = None
    text_column: str | None = None

    @property
    def vocab_size(self) -> int:
        """Vocabulary size, smaller for small texts, in which rare words occur too seldom."""
        if self.num_bytes is None:
            return BERT_VOCABULARY
        return next((size for limit, size in VOCABULARY_BY_TEXT if self.num_bytes < limit), BERT_VOCABULARY)


def starter_yaml(starter: StarterInputs, file: Path) -> str:
    """Return the YAML text of the run file, with comments on the values that users change first."""
    kind = "encoder" if starter.causal_task is None else "Llama"
    ways = "is checked by `neobert-launch lint`; `neobert-launch explain KEY` describes a key"
    head = f"# A {starter.size} {kind}, pretrained on {DEVICES[starter.device]}.\n# {file.name} {ways}.\n"
    glosses = {"model": f"{starter.size}: {SIZES[starter.size].gloss}", "tokenizer": TOKENIZER}
    return head + entries_yaml([*_run_file_entries(starter, file)], file.parent, glosses)


def _run_file_entries(starter: StarterInputs, file: Path) -> Iterator[Entry]:
    size, pace = SIZES[starter.size], PACES[starter.device, starter.size]
    max_steps, steps_comment = _max_steps(starter, size, pace)
    cadence = max(1, max_steps // 12)
    yield Entry("profile", starter.device, f"other values: neobert-launch profiles show {starter.device}")
    if starter.causal_task is not None:
        yield Entry("task", starter.causal_task, "predict each token from the previous ones")
    yield from _model_entries(starter, size)
    if starter.causal_task is not None:
        yield Entry("tokenizer.algorithm", "bpe", "its tokens decode to the exact text")
    yield Entry("tokenizer.vocab_size", starter.vocab_size)
    yield _source_entry(starter)
    if starter.text_column is not None:
        yield Entry(TEXT_SETTING, starter.text_column)
    yield Entry("dataset.max_seq_length", size.max_seq_length, "tokens; longer documents are split")
    yield from _evaluation_entries(starter)
    yield from _rate_entries(starter, size)
    runs = file.parent / "runs"
    yield Entry("trainer.output_dir", str(runs / file.stem), "checkpoints, metrics, logs")
    yield Entry("trainer.max_steps", max_steps, steps_comment)
    yield Entry("trainer.per_device_train_batch_size", pace.rows, "rows of max_seq_length tokens")
    yield Entry("trainer.gradient_accumulation_steps", pace.accumulation, "microbatches per step")
    yield Entry("trainer.save_steps", cadence, "a stopped run continues from the newest checkpoint")
    yield Entry("trainer.eval_steps", cadence)
    yield Entry("trainer.logging_steps", 10)
    if _repays_compilation(starter, size, pace, max_steps):
        yield Entry("trainer.torch_compile", True, COMPILED)


def _model_entries(starter: StarterInputs, size: StarterSize) -> Iterator[Entry]:
    is_causal, heads = starter.causal_task is not None, _num_heads(starter, size)
    if is_causal:
        yield Entry("model.type", "hf", "a transformers model")
        yield Entry("model.architecture", "llama")
    yield Entry("model.hidden_size", size.hidden_size, "width; a multiple of num_attention_heads")
    yield Entry("model.num_hidden_layers", size.num_hidden_layers)
    yield Entry("model.num_attention_heads", heads)
    if is_causal:
        yield Entry("model.num_key_value_heads", heads // 3, "each is shared by three heads")
    width = size.intermediate_size * 2 // 3 if is_causal else size.intermediate_size  # has three matrices
    yield Entry("model.intermediate_size", width)


def _source_entry(starter: StarterInputs) -> Entry:
    if not starter.text:
        return Entry("dataset.name", starter.dataset, "or path: a file or folder of text")
    comment = "a file, folder or pattern (notes/*.md), or a list of them; relative to this file"
    return Entry("dataset.path", starter.text, comment)


def _evaluation_entries(starter: StarterInputs) -> list[Entry]:
    """Return the keys that hold out evaluation text; also document_per_line if each line is a document."""
    documents = None if starter.has_evaluation else starter.documents
    entries = [*held_out_keys(documents, is_by_line=starter.is_by_line)]
    if not starter.has_evaluation and not any(each.key in HOLDING_OUT for each in entries):
        entries.append(Entry(HOLDING_OUT[0], HELD_OUT, "of the documents, for eval/loss"))
    return entries


def _rate_entries(starter: StarterInputs, size: StarterSize) -> Iterator[Entry]:
    """Yield the learning rate, which depends on the size, except on a GPU.

    The recipes of the profiles are for encoders, so a decoder gets an optimizer too.
    """
    if starter.causal_task is None:
        if starter.device == "cpu":
            comment = "peak; optimizer, warm-up and decay are set by the profile"
            yield Entry("optimizer.lr", size.lr, comment)
        return
    yield Entry("optimizer.name", "muon", "for the blocks' matrices, and AdamW for the rest")
    yield Entry("optimizer.muon_split", "heads")
    if starter.device == "cpu":
        yield Entry("optimizer.lr", size.lr, "peak; measured for the size tiny, otherwise an estimate")
    else:
        yield Entry("optimizer.muon_lr", 4e-3, "peak; an estimate")
        yield Entry("optimizer.lr", 2e-3, "of all other weights")


def _repays_compilation(starter: StarterInputs, size: StarterSize, pace: BatchShape, max_steps: int) -> bool:
    """Return whether compiling saves time: for a decoder on a GPU with at least `COMPILED_FLOPS`."""
    blocks = 12 * size.num_hidden_layers * size.hidden_size**2
    parameters = blocks + starter.vocab_size * size.hidden_size
    tokens = pace.rows * pace.accumulation * size.max_seq_length * max_steps
    is_decoder = starter.causal_task is not None and starter.device == "gpu"
    return is_decoder and 6 * parameters * tokens >= COMPILED_FLOPS


def _num_heads(starter: StarterInputs, size: StarterSize) -> int:
    """Return the number of attention heads; on a GPU, heads have 64 channels, as the kernels require."""
    return size.hidden_size // 64 if starter.device == "gpu" else size.num_attention_heads


def _max_steps(starter: StarterInputs, size: StarterSize, pace: BatchShape) -> tuple[int, str]:
    """Return the number of steps, which bounds the passes over the text, and its comment in the run file."""
    if starter.num_bytes is None or not starter.is_plain:
        return pace.max_steps, "optimizer steps"
    tokens_per_step = pace.rows * pace.accumulation * size.max_seq_length
    per_pass = starter.num_bytes * TRAINED_SHARE / BYTES_PER_TOKEN / tokens_per_step
    max_passes = MAX_PASSES if starter.causal_task is None else CAUSAL_PASSES
    steps = min(pace.max_steps, max(MIN_STEPS, round(max_passes * per_pass)))
    if steps <= per_pass:
        return steps, f"one pass over this text takes about {two_digit_text(per_pass)} steps"
    of_steps = f" of {two_digit_text(per_pass)} steps" if per_pass > 1.5 else ""
    return steps, f"about {two_digit_text(steps / per_pass)} passes{of_steps} over this text"


def two_digit_text(number: float) -> str:
    """Format a number rounded to two significant digits, such as 1.5, 12 or 1,300."""
    return f"{float(f'{number:.2g}'):,.0f}" if number >= 10 else f"{number:.2g}"
