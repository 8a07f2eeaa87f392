"""The summary of `data prepare`."""

from launcher.commands.data import prepared_text

COUNTS = {
    "source": "notes (train, 2 files; not read: 1 x .md)",
    "documents": 1200,
    "segments": 3000,
    "tokens": 45_000,
}
ZEROS = dict.fromkeys(
    ("empty", "too_short", "split", "truncated", "dropped", "tokens_lost", "unknown", "special"), 0
)


def test_only_what_happened_to_the_text_is_named():
    report = {
        "train": {
            **COUNTS,
            **ZEROS,
            "split": 7,
            "unknown": 3,
            "copies_of_evaluation": 2,
            "left_out": {"rows_of_one_text": 1, "negatives": 4},
            "labels": {"0": 700, "1": 500},
        },
        "eval": {**COUNTS, **ZEROS, "copies_in_training": 1},
        "corpora": {"books": {"tokens": 9000, "share": 0.75, "tokens_read": 18_000, "epochs": 2.0}},
        "microbatch": {"tokens": 1024, "fill": 0.9978, "reason": "16 documents"},
        "epochs": 2.5,
        "tokenizer": {
            "tokens": 4096,
            "algorithm": "BPE",
            "case": "lowered",
            "accents": "kept",
            "framing": "[CLS] text [SEP]",
        },
        "folder": "/cache/a",
    }
    assert prepared_text(report).splitlines() == [
        "training text    1,200 documents, 3,000 segments, 45,000 tokens",
        "                 from notes (train, 2 files; not read: 1 x .md)",
        "                 7 documents longer than a row: split",
        "                 2 documents with a copy in the evaluation text",
        "                 3 tokens unknown to the tokenizer",
        "                 1 row with one of two texts: left out",
        "                 4 hard negatives empty or repeated: left out",
        "                 labels 0: 700, 1: 500",
        "evaluation text  1,200 documents, 3,000 segments, 45,000 tokens",
        "                 from notes (train, 2 files; not read: 1 x .md)",
        "                 1 document with a copy in the training text",
        "corpus books     9,000 tokens, 75.0% of the run's tokens",
        "                 the run reads 18,000 tokens, 2 epochs",
        "microbatch       1,024 tokens, 99.8% of them used",
        "                 16 documents",
        "epochs           2.5: the run's tokens / tokens of the training text",
        "tokenizer        4,096 tokens, BPE, case lowered, accents kept, framed as [CLS] text [SEP]",
        "folder           /cache/a",
    ]
    report["tokenizer"]["framing"] = "text"
    assert "accents kept, no start or end tokens\n" in prepared_text(report)


def test_a_stream_has_no_total():
    report = {"train": COUNTS, "microbatch": {"tokens": 1024, "reason": "16 documents"}}
    assert "microbatch       1,024 tokens" not in prepared_text(report)
    assert "microbatch     1,024 tokens\n" in prepared_text(report)


def test_labelled_words_are_counted_in_words():
    words = {"total": 1590, "without_token": 0, "cut": 0}
    assert "                 1,590 labelled words\n" in prepared_text(
        {"train": COUNTS, "eval": COUNTS | {"words": words}, "folder": "/cache/a"}
    )
    lost = words | {"without_token": 1, "cut": 2}
    assert "1,590 labelled words, 1 without a token, 2 cut off: labels of 3 are not used" in prepared_text(
        {"train": COUNTS | {"words": lost}}
    )
