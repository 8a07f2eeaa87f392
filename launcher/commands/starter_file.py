"""Content of the run file that `init` writes: sizes, values by device, comments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from launcher.commands.held_out_documents import HELD_OUT, HOLDING_OUT, held_out_keys
from launcher.commands.run_file_entries import Entry
from neobert.config.migrated_files import yaml_text

Device = Literal["cpu", "gpu"]
SizeName = Literal["tiny", "small", "base"]
BYTES_PER_TOKEN = 4
"""Typical of English text in WordPiece; used only for comments in the run file."""
VOCABULARY_BY_TEXT = ((4e6, 4096), (40e6, 8192), (400e6, 16384))
BERT_VOCABULARY = 30522
TRAINED_SHARE = 0.95
"""Share of the documents that is not held out by the validation_split of the run file."""
MAX_PASSES, CAUSAL_PASSES, MIN_STEPS = 20, 4, 20
"""Most passes over a small text: an encoder gets new masks in each, a decoder the same tokens. Of 3,000
lines, the held-out loss of a tiny decoder was 5.3 nats after 4 passes, 5.8 after 7, 7.2 on the way to 20."""
COMPILED_FLOPS = 5e16
"""Work that repays the compilation of packed rows and targets of tokens. On an H100 a ModernBERT of 149M
parameters compiles in 62 s, trains 1.9 times as fast, and saves them within 2e16; a Qwen2 of 494M in 85 s,
1.8 times as fast, within 5e16."""
COMPILED = "a minute before the first step, then about twice as fast"


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a model, with a suitable sequence length, learning rate on a CPU and description (`gloss`)."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_seq_length: int
    lr: str
    gloss: str


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Length and batch size of a first run: `accumulation` microbatches of `rows` rows per step."""

    max_steps: int
    rows: int
    accumulation: int = 1


SIZES: dict[SizeName, Size] = {
    "tiny": Size(192, 4, 6, 768, 128, "8e-3", "to try out the whole workflow"),
    "small": Size(384, 12, 6, 1536, 256, "4e-3", "width of MiniLM"),
    "base": Size(768, 12, 12, 3072, 512, "4e-3", "shape of BERT-base"),
}
PACES: dict[tuple[Device, SizeName], BatchShape] = {
    ("cpu", "tiny"): BatchShape(800, 8),
    ("cpu", "small"): BatchShape(1000, 8),
    ("cpu", "base"): BatchShape(250, 2, 4),  # Muon's products take as long as 3,000 tokens
    ("gpu", "tiny"): BatchShape(2000, 128),
    ("gpu", "small"): BatchShape(5000, 64),
    ("gpu", "base"): BatchShape(20000, 32, 4),
}
LLAMA = [("  type: hf", "a transformers model"), ("  architecture: llama", "")]
DEVICES: dict[Device, str] = {"cpu": "this machine's processor", "gpu": "one GPU"}


@dataclass(frozen=True, slots=True)
class Starter:
    """The user's answers, which determine the content of the run file.

    Attributes:
        text: path as it is written to the file; empty for a dataset.
        dataset: name of a dataset; empty for a path.
        num_bytes: size of the files of the text; None if unknown.
        is_plain: whether this is the size of the text, and not of compressed or binary files.
        has_evaluation: whether the text has files for evaluation, so that no document is held out.
        stem: name of the file without its suffix, which names the run directory.
        documents: number of documents of the text; None if unknown.
        is_by_line: each line of the text is a document.
        causal_task: task of a causal model; None for an encoder.
    """

    text: str
    dataset: str
    size: SizeName
    device: Device
    num_bytes: int | None
    stem: str
    is_plain: bool = True
    has_evaluation: bool = False
    documents: int | None = None
    is_by_line: bool = False
    causal_task: str | None = None

    @property
    def vocab_size(self) -> int:
        """Return the vocabulary size: smaller for small texts, in which rare words occur too seldom."""
        if self.num_bytes is None:
            return BERT_VOCABULARY
        return next((size for limit, size in VOCABULARY_BY_TEXT if self.num_bytes < limit), BERT_VOCABULARY)


def starter_yaml(starter: Starter, file: str) -> str:
    """Return the YAML text of the run file, with comments on the values that users change first."""
    size, pace = SIZES[starter.size], PACES[starter.device, starter.size]
    max_steps, steps_comment = _max_steps(starter, size, pace)
    cadence = max(1, max_steps // 12)
    is_causal, heads = starter.causal_task is not None, _num_heads(starter, size)
    width = size.intermediate_size * 2 // 3 if is_causal else size.intermediate_size  # has three matrices
    source = _yaml_entry("path", starter.text) if starter.text else _yaml_entry("name", starter.dataset)
    rows: list[tuple[str, str]] = [
        (f"profile: {starter.device}", f"other values: neobert-launch profiles show {starter.device}"),
        *([(f"task: {starter.causal_task}", "the next token, from those before it")] * is_causal),
        ("", ""),
        ("model:", f"{starter.size}: {size.gloss}"),
        *(LLAMA * is_causal),
        (f"  hidden_size: {size.hidden_size}", "width; a multiple of num_attention_heads"),
        (f"  num_hidden_layers: {size.num_hidden_layers}", ""),
        (f"  num_attention_heads: {heads}", ""),
        *([(f"  num_key_value_heads: {heads // 3}", "each is shared by three heads")] * is_causal),
        (f"  intermediate_size: {width}", ""),
        ("", ""),
        ("tokenizer:", "one is trained on the text first; or set path: FOLDER (a tokenizer.json)"),
        *([("  algorithm: bpe", "its tokens decode to the exact text")] * is_causal),
        (f"  vocab_size: {starter.vocab_size}", ""),
        ("", ""),
        ("dataset:", ""),
        (f"  {source}", _source_comment(starter)),
        (f"  max_seq_length: {size.max_seq_length}", "tokens; longer documents are split"),
        *_evaluation_lines(starter),
        ("", ""),
        *_rate_lines(starter, size),
        ("trainer:", ""),
        (f"  {_yaml_entry('output_dir', f'runs/{starter.stem}')}", "checkpoints, metrics, logs"),
        (f"  max_steps: {max_steps}", steps_comment),
        (f"  per_device_train_batch_size: {pace.rows}", "rows of max_seq_length tokens"),
        (f"  gradient_accumulation_steps: {pace.accumulation}", "microbatches per step"),
        (f"  save_steps: {cadence}", "a stopped run continues from the newest checkpoint"),
        (f"  eval_steps: {cadence}", ""),
        ("  logging_steps: 10", ""),
        *([("  torch_compile: true", COMPILED)] * _repays_compilation(starter, size, pace, max_steps)),
    ]
    kind = "Llama" if is_causal else "encoder"
    head = f"# A {starter.size} {kind}, pretrained on {DEVICES[starter.device]}.\n"
    head += f"# {file} is checked by `neobert-launch lint`; `neobert-launch explain KEY` describes a key.\n"
    width = max(len(text) for text, comment in rows if comment and len(text) < 40) + 2
    return head + "".join(_commented_line(text, comment, width) for text, comment in rows)


def _evaluation_lines(starter: Starter) -> list[tuple[str, str]]:
    """Return the evaluation text's lines, and the documents' if documents are lines."""
    documents = None if starter.has_evaluation else starter.documents
    entries = [*held_out_keys(documents, is_by_line=starter.is_by_line)]
    if not starter.has_evaluation and not any(each.key in HOLDING_OUT for each in entries):
        entries.append(Entry(HOLDING_OUT[0], HELD_OUT, "of the documents, for eval/loss"))
    return [
        (f"  {_yaml_entry(each.key.removeprefix('dataset.'), each.value)}", each.comment) for each in entries
    ]


def _rate_lines(starter: Starter, size: Size) -> list[tuple[str, str]]:
    """Return the lines of the learning rate, which depends on the size, except on a GPU."""
    if starter.causal_task is not None:
        return _decoder_rate_lines(starter, size)
    if starter.device == "gpu":
        return []
    comment = "peak; optimizer, warm-up and decay are set by the profile"
    return [("optimizer:", ""), (f"  lr: {size.lr}", comment), ("", "")]


def _decoder_rate_lines(starter: Starter, size: Size) -> list[tuple[str, str]]:
    """Return the lines of the optimizer: recipes of the profiles are of encoders."""
    rates = [(f"  lr: {size.lr}", "peak; measured for a tiny one, else an estimate")]
    if starter.device == "gpu":
        rates = [("  muon_lr: 4e-3", "peak; an estimate"), ("  lr: 2e-3", "of all other weights")]
    muon = [("  name: muon", "for the blocks' matrices, and AdamW for the rest"), ("  muon_split: heads", "")]
    return [("optimizer:", ""), *muon, *rates, ("", "")]


def _repays_compilation(starter: Starter, size: Size, pace: BatchShape, max_steps: int) -> bool:
    """Return whether a decoder on a GPU is compiled: the kernels of encoders need no compilation."""
    blocks = 12 * size.num_hidden_layers * size.hidden_size**2
    parameters = blocks + starter.vocab_size * size.hidden_size
    tokens = pace.rows * pace.accumulation * size.max_seq_length * max_steps
    is_decoder = starter.causal_task is not None and starter.device == "gpu"
    return is_decoder and 6 * parameters * tokens >= COMPILED_FLOPS


def _num_heads(starter: Starter, size: Size) -> int:
    """Return the number of heads; on a GPU of 64 channels each, which this project's kernels support."""
    return size.hidden_size // 64 if starter.device == "gpu" else size.num_attention_heads


def _commented_line(text: str, comment: str, width: int) -> str:
    return (f"{text:{width - 2}}  # {comment}" if comment else text) + "\n"


def _yaml_entry(name: str, value: object) -> str:
    return f"{name}: {yaml_text(value)}"


def _source_comment(starter: Starter) -> str:
    if not starter.text:
        return "or path: a file or folder of text"
    return "a file, folder or pattern (notes/*.md), or a list of them; relative to this file"


def _max_steps(starter: Starter, size: Size, pace: BatchShape) -> tuple[int, str]:
    """Return the number of steps, bounded by the passes over the text, and its comment."""
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
    """Return two digits of a number, without decimals from 10."""
    return f"{float(f'{number:.2g}'):,.0f}" if number >= 10 else f"{number:.2g}"
