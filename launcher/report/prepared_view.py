"""Prepared data as text: counts of documents and tokens, left out documents, fill of microbatches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.report.conversation_view import conversation_text, left_out
from launcher.terminal.table import columns
from launcher.terminal.values import show_number
from neobert.plurals import counted, percent
from neobert.runfiles.conversation_faults import Fault

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


def prepared_text(report: Report) -> str:
    """Format the main values of a report of `data prepare` as rows; the JSON output has all values."""
    splits = (_split_rows(name, report[split]) for split, name in SPLITS.items() if split in report)
    rows = [*(row for split in splits for row in split), *_corpus_rows(report.get("corpora", {}))]
    text = columns([*_part_rows(report), *rows, *_shape_rows(report)])
    return f"{text}\n\n{conversation_text(report['sample'])}" if report.get("sample") else text


def _part_rows(report: Report) -> Iterator[Row]:
    """Yield the rows of a part of a text, or of joined parts."""
    if "parts" in report:
        yield "parts", f"{report['parts']:,}, joined"
    if "part" not in report:
        return
    blocks = f"{report['blocks']:,} of {counted(report['num_blocks'], 'block')}"
    yield "part", f"{report['part']}, {blocks}{'' if report['is_new'] else ', prepared before'}"
    if "largest_part" in report:
        times = show_number(report["largest_part"], 3)
        yield "", f"the largest part has {times} times the mean size: fewer parts, or smaller files, are even"


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
    """Yield the rows of the supervised text of conversations."""
    if conversations := counts.get("conversations"):
        share = percent(conversations["supervised"] / max(1, counts["tokens"]))
        turns = counted(conversations["turns"], "turn")
        yield "", f"{conversations['supervised']:,} supervised tokens ({share}) of {turns}"
        yield from (("", line) for line in left_out(conversations))
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
