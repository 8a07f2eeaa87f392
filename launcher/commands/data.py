"""`data prepare`, `data join`, `data mine` and `tokenizer train`, which run in child processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from launcher.commands.selection import Selection, require_working_directory
from launcher.io.files import expand_user, make_folder, require_existing, require_writable
from launcher.process.json_child import run_json_child
from launcher.report.text_view import conversation_text, left_out_lines
from launcher.terminal import console
from launcher.terminal.table import format_columns
from launcher.terminal.values import result_json, show_number
from neobert.config import to_dict
from neobert.config.canonical import flatten
from neobert.errors import EXIT_OK, EXIT_USAGE, ProjectError
from neobert.mining.request import Request
from neobert.plurals import counted, percent
from neobert.runfiles.conversation_faults import Fault
from neobert.runfiles.model_folder import require_model_folder
from neobert.runfiles.prepared_parts import PartNumber
from profiles.registry import ResolvedRun
from validators.rules.data_prepared import foreign_ids

PREPARE, PREPARE_PART = "neobert.data.store.prepare", "neobert.data.store.part"
JOIN = "neobert.data.store.join"
PREPARED = "manifest.json"
TOKENIZER = "tokenizer.json"
TRAIN_TOKENIZER = "neobert.data.tokenize.train_tokenizer"

MINING_MODULE = "neobert.mining"
JSONL = ".jsonl"
MINING_HINT = "see the output above; if memory ran out, mine a part of the pairs"

SPLITS = {"train": "training text", "eval": "evaluation text"}
DOCUMENTS = {
    "empty": "without text: left out",
    "too_short": "shorter than dataset.min_length: left out",
    "split": "longer than a row: split",
    "truncated": "longer than a row: truncated",
    "dropped": "longer than a row: left out",
    "copies_of_evaluation": "with a copy in the evaluation text",
    "copies_in_training": "with a copy in the training text",
    "texts_in_training": "with a text of the training pairs",
    "texts_of_other_sources": "with a text of another source",
}
TOKENS = {
    "tokens_lost": "lost from long documents",
    "unknown": "unknown to the tokenizer",
    "special": "from text that spells a special token, such as [MASK]",
}
LEFT_OUT = {
    "rows_of_one_text": ("row", "with one of two texts: left out"),
    "negatives": ("hard negative", "empty or repeated: left out"),
}
WORDS = {"without_token": "without a token", "cut": "cut off"}
Report = Mapping[str, Any]
Row = tuple[str, str]


def prepare(selection: Selection, output: Path | None, part: str | None, output_format: str) -> int:
    """Tokenize the text of a run into `output` (None: the cache), print the report and return the exit code.

    If `part` is set, such as 3/64, only this part of the text is prepared. Raises `ProjectError` if `output`
    is not empty or the text cannot be prepared.
    """
    resolved = selection.require()
    if part is not None:
        return _prepare_part(resolved, output, PartNumber.from_option(part), output_format)
    if output is not None and not (output / PREPARED).exists():
        _require_new_folder(output, "prepared text")
    folder = () if output is None else (str(output.absolute()),)
    report = _run_config_child(PREPARE, "preparing the data", resolved, folder)
    return _print_prepared(report, output_format)


def _prepare_part(resolved: ResolvedRun, output: Path | None, part: PartNumber, output_format: str) -> int:
    if output is None:
        hint = f"add --output DIR; part {part} is written to DIR/{part.folder}"
        raise ProjectError("no-folder", "--part needs a folder for the parts", hint, "--part", EXIT_USAGE)
    arguments = (str(output.absolute()), part.option)
    report = _run_config_child(PREPARE_PART, f"preparing part {part}", resolved, arguments)
    return _print_prepared(report, output_format)


def join(folder: Path, output_format: str) -> int:
    """Join the prepared parts of a text and print the report.

    Raises `ProjectError` if the parts cannot be joined, or if token ids do not decode to the same ids again.
    """
    hint = "see the output above"
    report = run_json_child(JOIN, {"folder": str(folder.absolute())}, doing="joining the parts", hint=hint)
    return _print_prepared(report, output_format)


def _print_prepared(report: dict[str, Any], output_format: str) -> int:
    """Print the report. Raises `ProjectError` DAT002 if token ids do not decode to the same ids again."""
    console.write(result_json(report) if output_format == "json" else prepared_text(report))
    for violation in foreign_ids(report.get("token_ids", {})):
        raise ProjectError("DAT002", violation.message, violation.hint, violation.path)
    return EXIT_OK


def train_tokenizer(selection: Selection, output: Path, output_format: str) -> int:
    """Train the tokenizer of a run, save it in the new folder `output`, and print the report.

    Raises `ProjectError` if the folder is not empty or the tokenizer cannot be trained.
    """
    resolved = selection.require()
    _require_new_folder(output, "a tokenizer")
    make_folder(output.absolute().parent)
    require_writable(output.absolute() / TOKENIZER if output.exists() else output.absolute())
    report = _run_config_child(TRAIN_TOKENIZER, "training the tokenizer", resolved, (str(output),))
    print_report(report, output_format)
    return EXIT_OK


def _require_new_folder(output: Path, content: str) -> None:
    """Raise ProjectError unless the folder is new or empty, because existing files may be in use."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    message = (
        "the folder is not empty"
        if output.is_dir()
        else f"the output is a file, but {content} is written to a folder"
    )
    raise ProjectError("occupied-folder", message, "choose a new folder", str(output), EXIT_USAGE)


def _run_config_child(
    module: str, doing: str, resolved: ResolvedRun, arguments: Sequence[str]
) -> dict[str, Any]:
    hint = _hint_without_report(resolved.config.dataset.num_proc)
    return run_json_child(module, to_dict(resolved.config), arguments, doing=doing, hint=hint)


def _hint_without_report(num_proc: int) -> str:
    """Return the hint for a child process that ended without reporting an error."""
    less = f"set dataset.num_proc below {num_proc}" if num_proc > 1 else "use a machine with more memory"
    return f"see the output above; if memory ran out, {less}"


def print_report(report: dict[str, Any], output_format: str) -> None:
    """Print the report of a child process: as JSON, or one line per value, named by its key."""
    if output_format == "json":
        console.write(result_json(report))
    else:
        rows = [[name.replace("_", " "), _value_text(value)] for name, value in flatten(report).items()]
        console.write(format_columns(rows))


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def mine(request: Request, output_format: str) -> int:
    """Add negatives to pairs in a child process, and print the counts.

    Raises ProjectError for a model or file that does not exist, or an output that is not .jsonl.
    """
    require_working_directory()
    folder, pairs = expand_user(request.folder).absolute(), expand_user(request.pairs).absolute()
    output = expand_user(request.output).absolute()
    require_model_folder(folder)
    require_existing(pairs, "PAIRS")
    if output.suffix != JSONL:
        message, hint = (
            f"--output {output.name} does not end in {JSONL}",
            f"choose a name that ends in {JSONL}",
        )
        raise ProjectError("mine-output", message, hint, str(output), EXIT_USAGE)
    require_writable(output)
    corpus = None if request.corpus is None else expand_user(request.corpus).absolute()
    if corpus is not None:
        require_existing(corpus, "--corpus")
    content = replace(
        request,
        folder=str(folder),
        pairs=str(pairs),
        output=str(output),
        corpus=None if corpus is None else str(corpus),
    )
    print_report(
        run_json_child(MINING_MODULE, asdict(content), doing="loading the model", hint=MINING_HINT),
        output_format,
    )
    return EXIT_OK


def prepared_text(report: Report) -> str:
    """Format the main values of a `data prepare` report as rows, and the first conversation, if any."""
    splits = (_split_rows(name, report[split]) for split, name in SPLITS.items() if split in report)
    rows = [*(row for split in splits for row in split), *_corpus_rows(report.get("corpora", {}))]
    text = format_columns([*_part_rows(report), *rows, *_shape_rows(report)])
    return f"{text}\n\n{conversation_text(report['sample'])}" if report.get("sample") else text


def _part_rows(report: Report) -> Iterator[Row]:
    """Yield the rows about one part of a text, or about joined parts; none for a whole text."""
    if "parts" in report:
        yield "parts", f"{report['parts']:,}, joined"
    if "part" not in report:
        return
    blocks = f"{report['blocks']:,} of {counted(report['num_blocks'], 'block')}"
    yield "part", f"{report['part']}, {blocks}{'' if report['is_new'] else ', prepared before'}"
    if "largest_part" in report:
        times = show_number(report["largest_part"], 3)
        yield "", f"the largest part has {times} times the mean size: use fewer parts, or smaller files"


def _split_rows(name: str, counts: Report) -> Iterator[Row]:
    units = ("document", "segment", "token")
    sizes = (counted(counts[f"{unit}s"], unit) for unit in units if f"{unit}s" in counts)
    yield name, ", ".join(sizes)
    if "source" in counts:
        column = f", column {counts['column']}" if "column" in counts else ""
        yield "", f"from {counts['source']}{column}"
    for unit, meanings in (("document", DOCUMENTS), ("token", TOKENS)):
        for key, meaning in meanings.items():
            if counts.get(key):
                yield "", f"{counted(counts[key], unit)} {meaning}"
    for key, number in counts.get("left_out", {}).items():
        unit, meaning = LEFT_OUT[key]
        yield "", f"{counted(number, unit)} {meaning}"
    yield from _conversation_rows(counts)
    if counts.get("labels"):
        classes = ", ".join(f"{label}: {number:,}" for label, number in counts["labels"].items())
        yield "", f"labels {classes}"
    if words := counts.get("words"):
        lost = {meaning: words[key] for key, meaning in WORDS.items() if words.get(key)}
        named = [counted(words["total"], "labelled word"), *(f"{lost[each]:,} {each}" for each in lost)]
        unused = f": labels of {sum(lost.values()):,} are not used" if lost else ""
        yield "", ", ".join(named) + unused


def _conversation_rows(counts: Report) -> Iterator[Row]:
    if conversations := counts.get("conversations"):
        share = percent(conversations["supervised"] / max(1, counts["tokens"]))
        turns = counted(conversations["turns"], "turn")
        yield "", f"{conversations['supervised']:,} supervised tokens ({share}) of {turns}"
        yield from (("", line) for line in left_out_lines(conversations))
    for kind, fault in counts.get("faults", {}).items():
        if kind == Fault.CUT:  # counted above, with the documents that are left out
            continue
        yield (
            "",
            f"{kind}: {counted(fault['count'], 'conversation')}, first {fault['first']:,}: {fault['detail']}",
        )


def _corpus_rows(corpora: Report) -> Iterator[Row]:
    for name, corpus in corpora.items():
        yield f"corpus {name}", f"{corpus['tokens']:,} tokens, {percent(corpus['share'])} of the run's tokens"
        yield "", f"the run reads {corpus['tokens_read']:,} tokens, {show_number(corpus['epochs'], 3)} epochs"


def _shape_rows(report: Report) -> Iterator[Row]:
    if "microbatch" in report:
        shape = report["microbatch"]
        fill = f", {percent(shape['fill'])} of them used" if "fill" in shape else ""
        yield "microbatch", f"{shape['tokens']:,} tokens{fill}"
        yield "", shape["reason"]
    if "epochs" in report:
        yield "epochs", f"{show_number(report['epochs'], 3)}: the run's tokens / tokens of the training text"
    if "tokenizer" in report:
        yield "tokenizer", ", ".join(_tokenizer_values(report["tokenizer"]))
    if counts := report.get("token_ids"):
        returned = f"{counts['returned']:,} of {counted(counts['documents'], 'document')} that were compared"
        yield "token ids", f"{returned} have the same ids after decoding and tokenizing"
    if "folder" in report:
        yield "folder", report["folder"]


def _tokenizer_values(tokenizer: Report) -> Iterator[str]:
    yield f"{tokenizer['tokens']:,} tokens"
    yield tokenizer["algorithm"]
    yield from (f"{name} {tokenizer[name]}" for name in ("case", "accents"))
    framing = tokenizer["framing"]
    yield "no start or end tokens" if framing == "text" else f"framed as {framing}"
