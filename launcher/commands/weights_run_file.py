"""Run file content for a run that starts from weights or labelled texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.commands.held_out_documents import held_out_keys
from launcher.commands.learning_rates import adapter_rate, conversation_rate, rate_from_weights
from launcher.commands.long_conversations import KeptText, keep_text
from launcher.commands.longer_rows import context_keys, lowest_rate
from launcher.commands.new_batch import (
    MORE_HELD_OUT,
    BatchSize,
    batch_for_table,
    comment_on_length,
    covering_length,
    num_piece_rows,
    num_text_rows,
    rows_per_step,
    truncated_share,
)
from launcher.commands.run_file_entries import (
    Entry,
    changes_config,
    declared_entries,
    entries_yaml,
    resolve_entries,
)
from launcher.commands.starter_file import (
    BYTES_PER_TOKEN,
    COMPILED,
    COMPILED_FLOPS,
    MIN_STEPS,
    Device,
    two_digit_text,
)
from launcher.commands.starting_weights import WEIGHTS, StartingWeights, with_rotary_base_for
from neobert.config.schema import RunConfig
from neobert.data.sources.rows import TEXT_SETTING
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.families.hf.initial_weights import refuse_other_weights
from neobert.families.neobert.trained_settings import refuse_other_model
from neobert.families.shape import ModelShape
from neobert.families.table import model_shape, requested_kernels, unsupported_keys
from neobert.plurals import counted, percent
from neobert.printable import printable
from neobert.runfiles.chat_template import OWN, read_folder_template
from neobert.tasks.conversation_pieces import FEW_LOST, MANY_LOST
from neobert.tasks.labelled_table import LabelledTable
from neobert.tasks.specs import reported_metrics, spec_of

PASSES = 3
MAX_STEPS = {"cpu": 2000, "gpu": 20_000}
STEPS_OF_LABELS, PASSES_OF_LABELS = 200, 32
"""Minimum number of steps for labels, and maximum number of passes over the text. Mean Matthews or Spearman
correlation of MiniLM on held-out texts of 17 tables of 32 to 2,000 texts (two seeds, H200): 0.39 after 100
steps at 2e-4, 0.41 after 200 at 1e-4, and 0.43 after 400. Only tables with 50 classes gain from 400 steps
(0.39, 0.44, 0.64). transformers.Trainer with its defaults reached 0.31."""
MAX_TOKENS = {"cpu": 256, "gpu": 512}
ADAPTER = "adapter.type"
PACKING = "datacollator.pack_sequences"
FEW_EXAMPLES = 2000
"""Number of labelled examples below which a fifth of the texts is held out for the metrics."""
CHAT_FACTOR = 8
"""Maximum length of conversations as a multiple of the maximum length of texts."""
SYSTEM_PROMPT_TOKENS = 25
"""Tokens of the system prompt and the date that many chat templates add to a conversation."""
RELIABLY_HELD_OUT = 25
"""Number of conversations below which a share of them, chosen by hash, could be none."""


@dataclass(frozen=True, slots=True)
class RunFileInputs:
    """Inputs of the run file.

    Attributes:
        command: command that writes the file, for its first line.
        file: the run file; its stem is also the name of the run directory.
        weights: weights to start from; None for random weights.
        text: key and value of the text: dataset.path or dataset.name.
        lengths: sizes in bytes of the documents or labelled texts; of a large text, only of the first.
        read_share: share of the text that `lengths` measures; None if unknown.
        documents: number of documents; None if unknown.
        is_by_line: whether each line of the text is a document.
        bytes_per_token: estimate for the text.
        has_evaluation: whether other files are for evaluation, so that no training row is held out.
        table: columns and labels of the labelled rows; None for other tasks.
        text_column: named column of plain text; None for the usual names.
        context: tokens per row; None for as many as cover the texts.
        adapter: type of the adapter; None trains all weights.
    """

    command: str
    file: Path
    weights: StartingWeights | None
    task: str
    text: tuple[str, str]
    lengths: Sequence[int]
    read_share: float | None
    documents: int | None
    is_by_line: bool
    bytes_per_token: float
    has_evaluation: bool
    table: LabelledTable | None
    device: Device
    context: int | None = None
    adapter: str | None = None
    text_column: str | None = None


def run_file_yaml(request: RunFileInputs) -> str:
    """Return the YAML text of the run file: only keys that change the run.

    Raises `ProjectError` for a model that the task does not support.
    """
    entries = [*_run_file_entries(request)]
    config = resolve_entries(entries, request.device)
    for key, problem, hint in unsupported_keys(config):
        raise ProjectError("unsupported-model", problem, hint, key, EXIT_USAGE)
    if request.weights is not None:
        refuse_other_weights(config, request.weights.folder)
        refuse_other_model(config, request.weights.folder)
    kept = [each for each in entries if changes_config(each, entries, config, request.device)]
    return f"# {printable(request.command)}\n{entries_yaml(kept, request.file.parent)}"


def _run_file_entries(request: RunFileInputs) -> Iterator[Entry]:
    others = f"other values: neobert-launch profiles show {request.device}"
    yield Entry("profile", request.device, others, is_stated=True)
    first = [Entry("task", request.task), *_model_entries(request)]
    first += [Entry(*key) for key in request.table.keys.items()] if request.table else []
    first += declared_entries(request.task, request.weights.folder, request.device) if request.weights else ()
    first += [] if request.adapter in (None, "null") else [Entry(ADAPTER, request.adapter)]
    yield from first
    config = resolve_entries(first, request.device)
    shape = model_shape(config, 1)
    yield Entry(*request.text)
    yield from () if request.text_column is None else [Entry(TEXT_SETTING, request.text_column)]
    if request.context is not None:
        assert request.weights is not None
        longer = context_keys(config, shape, request.weights, request.context, request.lengths)
        yield from longer
        config = resolve_entries([*first, *longer], request.device)
        request = _without_short_documents(request, config.dataset.min_length)
    yield from held_out_keys(request.documents, is_by_line=request.is_by_line)
    is_chat = spec_of(config).stores_targets
    if is_chat and not _lacks_template(request):
        request = _with_system_prompts(request)
    length = request.context or _row_length(request, shape, is_chat=is_chat)
    kept = _kept_text(request, length) if is_chat else None
    yield from () if kept is None else _conversation_entries(request, shape, kept)
    limit = _max_trained_row_length(request, shape)
    comment = (
        comment_on_length(request.lengths, length, limit, request.bytes_per_token)
        if request.table
        else "tokens; longer documents are split"
    )
    yield Entry("dataset.max_seq_length", length, comment)
    packing = _packing_entry(request, config)
    is_packed = bool(packing.value)
    held_out = 0.0 if request.has_evaluation else config.dataset.validation_split or 0.0
    few = FEW_EXAMPLES * spec_of(config).texts(config)
    if request.table is not None and len(request.lengths) < few and not request.has_evaluation:
        held_out = MORE_HELD_OUT
        yield _held_out_entry(request.table, is_chat=is_chat)
    yield packing
    batch = BatchSize(rows_per_step(config.trainer))
    if kept is not None:
        request = replace(request, lengths=kept.sizes)
    if request.table is not None:
        texts = request.lengths, length, request.bytes_per_token
        batch = batch_for_table(config, *texts, request.device, is_packed=is_packed)
    rows = batch.rows
    if request.weights is not None and not is_chat:
        yield _rate_entry_from_weights(request, config, shape, rows * length)
    per_pass = _rows_per_pass(request, length, batch, is_packed=is_packed) * (1 - held_out) / rows
    steps = _num_steps(request, config, per_pass)
    yield from _trainer_entries(request, config, steps, per_pass)
    is_measured = is_packed and request.weights is not None and spec_of(config).is_self_supervised
    work = 6 * shape.parameters.total * rows * length * steps
    if request.device == "gpu" and is_measured and work >= COMPILED_FLOPS:
        yield Entry("trainer.torch_compile", True, COMPILED)
    if request.table is not None:
        yield from _batch_entries(batch, is_packed=is_packed)
    if (of_example := spec_of(config).texts(config)) > config.trainer.per_device_eval_batch_size:
        yield Entry("trainer.per_device_eval_batch_size", of_example, "texts of one example")


def _held_out_entry(table: LabelledTable, *, is_chat: bool) -> Entry:
    """Return the entry that holds out rows: a share, or a number of few conversations.

    Raises `ProjectError` for a single conversation.
    """
    total = len(table.lengths)
    if not is_chat or total >= RELIABLY_HELD_OUT:
        comment = "share of the texts, held out for the metrics"
        return Entry("dataset.validation_split", MORE_HELD_OUT, comment)
    if total == 1:
        message = "the table has 1 conversation (at least 2)"
        hint = "add conversations: one is held out for the metrics"
        raise ProjectError("unclear-table", message, hint, "--text", EXIT_USAGE)
    number = math.ceil(MORE_HELD_OUT * total)
    return Entry("dataset.eval_samples", number, f"of {total} conversations, held out for the metrics")


def _packing_entry(request: RunFileInputs, config: RunConfig) -> Entry:
    """Return the entry that states whether rows hold several documents, and why not in its comment.

    Packed documents go through SDPA one by one, which takes long on a GPU.
    """
    if any(each.key == PACKING for each in unsupported_keys(config)):
        return Entry(PACKING, False, "this architecture cannot pack")
    if request.device == "gpu" and requested_kernels(config)[1] == "sdpa":
        return Entry(PACKING, False, "attention dropout has no fast packed kernel")
    return Entry(PACKING, True)


def _batch_entries(batch: BatchSize, *, is_packed: bool) -> Iterator[Entry]:
    a_step = " a step" if batch.microbatches > 1 else ""
    size = f"about {counted(batch.texts, 'text')}{a_step}" if is_packed else ""
    yield Entry("trainer.per_device_train_batch_size", batch.rows // batch.microbatches, size)
    yield Entry("trainer.gradient_accumulation_steps", batch.microbatches)


def _without_short_documents(request: RunFileInputs, min_tokens: int) -> RunFileInputs:
    """Return the request without documents below `min_tokens`, or unchanged if none would be left."""
    kept = (
        [each for each in request.lengths if each >= min_tokens * BYTES_PER_TOKEN] if min_tokens > 1 else []
    )
    if not kept:
        return request
    number = len(kept) / len(request.lengths)
    return replace(
        request,
        lengths=kept,
        documents=None if request.documents is None else max(1, round(number * request.documents)),
    )


def _rate_entry(request: RunFileInputs, rate: float, shape: ModelShape, why: str = "") -> Entry:
    """Return the entry of the learning rate, which an adapter raises; `why` extends its comment."""
    if request.adapter == "lora":
        rate, why = adapter_rate(rate), f"{why}; raised for an adapter"
    return Entry("optimizer.lr", rate, f"for a width of {shape.hidden_size:,}{why}")


def _rate_entry_from_weights(
    request: RunFileInputs, config: RunConfig, shape: ModelShape, tokens: int
) -> Entry:
    assert request.weights is not None
    spec, folder = spec_of(config), request.weights.folder
    rate, why = rate_from_weights(spec, folder, shape, tokens), ""
    if spec.declared_keys(folder):
        why = "; low, because these embeddings are already trained"
    elif request.context is not None and rate < (least := lowest_rate(request.weights, request.task)):
        rate, why = least, "; a tenth of the earlier rate"
    return _rate_entry(request, rate, shape, why)


def _conversation_entries(request: RunFileInputs, shape: ModelShape, kept: KeptText) -> Iterator[Entry]:
    """Yield a chat template if the tokenizer has none, and the recipe for trained weights."""
    if _lacks_template(request):
        yield Entry("tokenizer.chat_template", next(iter(OWN)), "the tokenizer has no template of its own")
    yield Entry("dataset.long_documents", kept.long_documents, kept.comment)
    yield _rate_entry(request, conversation_rate(shape.hidden_size), shape)
    yield Entry("optimizer.weight_decay", 0.0)
    yield Entry("optimizer.betas", [0.9, 0.95])
    yield Entry("scheduler.name", "cosine")
    yield Entry("scheduler.warmup_percent", 3)
    yield Entry("scheduler.final_lr_ratio", 0.1)
    yield Entry("trainer.gradient_clipping", 1.0)


def _lacks_template(request: RunFileInputs) -> bool:
    return request.weights is not None and read_folder_template(request.weights.folder) is None


def _with_system_prompts(request: RunFileInputs) -> RunFileInputs:
    """Return the request with conversations that are longer by the text that chat templates add."""
    assert request.table is not None
    num_bytes = round(SYSTEM_PROMPT_TOKENS * request.bytes_per_token)
    conversations = tuple(
        (first._replace(prompt=first.prompt + num_bytes), *others)
        for first, *others in request.table.conversations
    )
    lengths = [size + num_bytes for size in request.lengths]
    return replace(request, table=replace(request.table, conversations=conversations), lengths=lengths)


def _kept_text(request: RunFileInputs, length: int) -> KeptText:
    """Return the text that is kept of the conversations in rows of `length` tokens.

    Raises `ProjectError` if too much of the answers is lost, as the preflight of a run does.
    """
    kept = _estimate_kept(request, length)
    if kept.lost > MANY_LOST:
        num_longer = sum(size > length * request.bytes_per_token for size in request.lengths)
        longer = f"about {num_longer:,} of {counted(len(request.lengths), 'conversation')} exceed the"
        lost = f"{percent(kept.lost)} of the answers' tokens are lost (limit {percent(MANY_LOST)})"
        message = f"{longer} {length:,} positions of the model: {lost}"
        hint = "shorten or remove these, or pass a model with more positions as --from"
        raise ProjectError("SFT008", message, hint, request.text[1], EXIT_USAGE)
    return kept


def _estimate_kept(request: RunFileInputs, length: int) -> KeptText:
    assert request.table is not None
    return keep_text(request.table.conversations, length, request.bytes_per_token)


def _model_entries(request: RunFileInputs) -> Iterator[Entry]:
    if request.weights is None:
        return
    weights = with_rotary_base_for(request.weights, request.context or 0)
    for name, value in weights.keys.items():
        comment = ""
        if value != (trained := request.weights.keys[name]):
            earlier = f"{trained:g} for {weights.positions:,} tokens"
            comment = f"raised from {earlier}, for rows of {request.context:,} tokens"
        yield Entry(f"model.{name}", value, comment)
    yield Entry(WEIGHTS, weights.place, "weights and tokenizer; optimizer and schedule are new")
    if weights.revision is not None:
        yield Entry("model.revision", weights.revision, "commit on the Hub; later ones are not used")


def _row_length(request: RunFileInputs, shape: ModelShape, *, is_chat: bool) -> int:
    """Return the row length in tokens: a power of two that covers the texts, or a limit of device or model.

    Conversations may exceed the limit of the device, because conversations that do not fit are lost. A few
    very long ones may be much of the text or of the answers.
    """
    lengths, bytes_per_token = request.lengths, request.bytes_per_token
    most = MAX_TOKENS[request.device] * (CHAT_FACTOR if is_chat else 1)
    needed = covering_length(lengths or [BYTES_PER_TOKEN * MAX_TOKENS["gpu"]], bytes_per_token)
    while is_chat and truncated_share(lengths, most, bytes_per_token) > MANY_LOST:
        most *= 2
    while is_chat and truncated_share(lengths, needed, bytes_per_token) > FEW_LOST:
        needed *= 2
    limit = _max_trained_row_length(request, shape) or max(needed, most)
    length = min(needed, most, limit)
    while is_chat and length < limit and _estimate_kept(request, length).lost > MANY_LOST:
        length = min(2 * length, limit)
    return length


def _max_trained_row_length(request: RunFileInputs, shape: ModelShape) -> int:
    """Return the maximum row length that the weights were trained on, in tokens; 0 for random weights."""
    return 0 if request.weights is None else request.weights.positions or shape.max_positions


def _num_steps(request: RunFileInputs, config: RunConfig, per_pass: float) -> int:
    """Return the number of steps for `PASSES` over the text, within limits.

    Returns the number of steps of the profile if the size of the text is unknown.
    """
    if not per_pass:
        return config.trainer.max_steps
    has_labels = spec_of(config).predicts == "labels"
    least = min(STEPS_OF_LABELS, PASSES_OF_LABELS * per_pass) if has_labels else 0
    return math.ceil(min(MAX_STEPS[request.device], max(MIN_STEPS, least, PASSES * per_pass)))


def _trainer_entries(
    request: RunFileInputs, config: RunConfig, steps: int, per_pass: float
) -> Iterator[Entry]:
    runs = request.file.parent / "runs"
    yield Entry("trainer.output_dir", str(runs / request.file.stem), "checkpoints, metrics, logs")
    of = "text" if request.read_share else "rows that were read"
    passes = f"about {two_digit_text(steps / per_pass)} passes over the {of}" if per_pass else ""
    yield Entry("trainer.max_steps", steps, passes)
    if request.table is not None:
        yield Entry("trainer.metric_for_best_model", reported_metrics(config)[-1].name, "checkpoints/best")
    elif steps < 2 * config.trainer.eval_steps:
        yield Entry("trainer.eval_steps", math.ceil(steps / 4))


def _rows_per_pass(request: RunFileInputs, length: int, batch: BatchSize, *, is_packed: bool) -> float:
    """Return the number of rows in one pass over the text, or 0 if it is unknown.

    For a table of unknown length, one pass over the rows that were read.
    """
    table, bytes_per_token = request.table, request.bytes_per_token
    if table is not None and not table.conversations:
        packed_into = batch.rows // batch.microbatches if is_packed else 0
        rows = num_text_rows(request.lengths, length, packed_into, bytes_per_token)
    else:
        rows = num_piece_rows(request.lengths, length, bytes_per_token, is_packed=is_packed)
    share = request.read_share or (0.0 if table is None else 1.0)
    return rows / share if share else 0.0
