"""Limits on the text that was prepared: just at them, and just beyond."""

from dataclasses import replace
from typing import Any

import pytest

from tests.validators.judging import (
    FACTS,
    found,
    run_of,
    with_facts,
    with_part,
    with_prepared,
)
from validators.facts import Facts
from validators.facts_text import TextFacts
from validators.finding import Severity
from validators.planning import plan_run
from validators.rule import RULES


@pytest.mark.parametrize(
    ("missing", "overrides", "path", "says"),
    [
        ("exists", (), "dataset.name", ""),
        ("exists", ("dataset.path=corpus", "dataset.name=null"), "dataset.path", ""),
        ("tokenizer_exists", (), "tokenizer.name", "there is no tokenizer named "),
        (
            "tokenizer_exists",
            ("tokenizer.path=t", "tokenizer.name=null"),
            "tokenizer.path",
            "there is no tokenizer in ",
        ),
    ],
)
def test_the_key_that_names_what_is_missing_is_named(missing, overrides, path, says):
    (one,) = found("DAT001", run_of(*overrides), with_facts("data", **{missing: False}))
    assert (one.path, one.message.startswith(says)) == (path, True)


@pytest.mark.parametrize(
    ("mixture", "keys"),
    [("[{path: a}, {name: b}]", ["dataset.mixture"]), ("[{name: a}, {name: b}]", [])],
)
def test_a_file_of_a_mixture_is_not_empty(mixture, keys):
    facts = with_facts("data", size_bytes=0)
    assert [one.path for one in found("DAT001", run_of(f"dataset.mixture={mixture}"), facts)] == keys


@pytest.mark.parametrize(
    ("overrides", "num_tokens", "hint"),
    [
        (("datacollator.pack_sequences=false",), 10**9, "set datacollator.pack_sequences to true"),
        ((), 10**9, "raise trainer.per_device_train_batch_size"),
        ((), 100, "add text, or lower trainer.per_device_train_batch_size"),
    ],
)
def test_the_way_to_fuller_microbatches(overrides, num_tokens, hint):
    (one,) = found("DAT005", run_of(*overrides), with_prepared(fill=0.1, num_tokens=num_tokens))
    assert one.hint.startswith(hint)


def test_a_model_that_cannot_be_packed_is_padded_without_a_warning():
    padded = ("datacollator.pack_sequences=false", "model.type=hf", "model.architecture=mpnet")
    assert not found("DAT005", run_of(*padded), with_prepared(fill=0.1))


@pytest.mark.parametrize(
    ("epochs", "severities"),
    [(4.0, []), (4.01, [Severity.WARN]), (40.0, [Severity.WARN]), (40.01, [None])],
)
def test_text_that_is_read_again(epochs, severities):
    assert [one.severity for one in found("DAT004", run_of(), with_prepared(epochs=epochs))] == severities


@pytest.mark.parametrize(
    ("histogram", "longest"),
    [(((64, 1), (128, 1)), "64"), (((64, 1), (128, 2)), "128"), (((64, 2), (128, 1), (256, 1)), "64"),
     (((64, 1), (128, 1), (256, 3)), "256")],
)  # fmt: skip
def test_the_median_document(histogram, longest):
    (one,) = found("DAT005", run_of(), with_prepared(histogram=histogram, dropped_share=0.5))
    assert f"half of the documents have at most {longest} tokens" in one.message


def test_no_labelled_text_is_to_be_split():
    facts = with_prepared(truncation_share=0.5, dropped_share=0.5)
    for profile, hint in (("cpu-demo", "set dataset.long_documents to split"), ("cpu-classify", "raise")):
        truncating = run_of("dataset.long_documents=truncate", profile=profile)
        hints = [each.hint for each in found("DAT005", truncating, facts)]
        assert len(hints) == 2
        assert all(hint in each for each in hints)
        assert any("min_length" in each for each in hints) == (profile == "cpu-demo")


@pytest.mark.parametrize(("share", "count"), [(0.75, 0), (0.7500001, 1), (0.25, 0), (0.2499999, 1)])
def test_five_deviations(share, count):
    """Of a hundred fair draws: 5 x sqrt(0.25 / 100) is exactly a quarter."""
    run = run_of("datacollator.mlm_probability=0.5")
    assert len(found("NUM006", run, with_prepared(num_maskable=100, masked_share=share))) == count


@pytest.mark.parametrize(("share", "count"), [(0.05, 0), (0.0501, 1)])
def test_text_that_stands_in_both(share, count):
    assert len(found("DAT006", run_of(), with_part("overlap", shared_share=share))) == count


@pytest.mark.parametrize(
    ("share", "severities"),
    [(0.95, [None]), (0.9499, [Severity.WARN]), (0.6001, [Severity.WARN]), (0.6, []), (0.05, []),
     (0.0499, [Severity.WARN]), (2**-14, [Severity.WARN]), (2**-14.01, [None])],
)  # fmt: skip
def test_tokens_to_predict_and_tokens_to_read(share, severities):
    """A microbatch of 16,384 tokens has one target at 2 ** -14."""
    output = found("DAT016", run_of(f"datacollator.mlm_probability={share!r}"), tokens_per_microbatch=16_384)
    assert [one.severity for one in output] == severities


def test_every_masking_rate_is_judged_by_its_own_key():
    run = run_of("datacollator.mlm_probability=0.01", "datacollator.mlm_probability_eval=0.96")
    keys = [one.path for one in found("DAT016", run)]
    assert keys == ["datacollator.mlm_probability", "datacollator.mlm_probability_eval"]


CLASSIFIED = ("task=classification", "dataset.long_documents=truncate")


@pytest.mark.parametrize(
    ("copies", "documents", "severities"),
    [(0, 0, []), (0, 1_000, []), (995, 100_000, []), (10, 1_000, [Severity.WARN]),
     (99, 1_000, [Severity.WARN]), (100, 1_000, [Severity.FAIL]), (20, 30, [Severity.FAIL])],
)  # fmt: skip
def test_evaluation_texts_that_are_trained_on(copies, documents, severities):
    facts = with_prepared(eval_copies=copies, eval_documents=documents)
    findings = found("DAT022", run_of(*CLASSIFIED), facts)
    assert [one.severity or Severity.FAIL for one in findings] == severities
    assert all(f"{copies:,} of {documents:,}" in one.message for one in findings)


@pytest.mark.parametrize(("temperature", "fewest"), [(0.001, 800), (0.02, 40), (0.05, 16), (0.2, 16)])
def test_a_low_temperature_needs_more_pairs(temperature, fewest):
    paired = ("task=contrastive", "dataset.long_documents=truncate", f"contrastive.temperature={temperature}")
    of = lambda pairs: with_prepared(pairs={"per_step": pairs, "false_share": 0.0})  # noqa: E731
    assert found("TSK012", run_of(*paired), of(fewest)) == []
    (one,) = found("TSK012", run_of(*paired), of(fewest - 0.5))
    assert f"(at least {fewest} at temperature {temperature:g})" in one.message


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("classification.num_labels=2",), None),
        (("classification.num_labels=1",), "num_labels"),
        (("classification.label_names=[a, b]",), None),
        (("classification.label_names=[a, b]", "classification.num_labels=3"), "num_labels"),
        (("classification.label_names=[a, a]",), "label_names"),
        (("classification.label_names=[a, b, a]",), "label_names"),
        (("classification.label_names=[a]",), "label_names"),
        (("classification.label_names=[a, b]", "classification.problem=regression"), "label_names"),
    ],
)
def test_labels_that_contradict_each_other(overrides, key):
    findings = found("TSK005", run_of(*CLASSIFIED, *overrides))
    assert [one.path for one in findings] == ([] if key is None else [f"classification.{key}"])


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("dataset.text_column=label",), "classification.label_column"),
        (("classification.label_column=a", "classification.pair_column=a"), "classification.label_column"),
        (("dataset.text_column=a", "classification.pair_column=a"), "classification.pair_column"),
        (("dataset.text_column=a", "classification.pair_column=b"), None),
    ],
)
def test_a_column_has_one_role(overrides, key):
    findings = found("TSK005", run_of(*CLASSIFIED, *overrides))
    assert [one.path for one in findings] == ([] if key is None else [key])
    assert all(one.hint == f"set {key} to another column" for one in findings)


@pytest.mark.parametrize(
    ("metric", "labels", "message"),
    [
        ("eval/accuracy", {"0": 9, "1": 1}, "90.0% of the evaluation's texts have label 0"),
        ("eval/accuracy", {"0": 899, "1": 101, "2": 0}, None),
        ("eval/accuracy", {"0": 9}, "100.0% of the evaluation's texts have label 0"),
        ("eval/mcc", {"0": 9, "1": 1}, None),
    ],
)
def test_accuracy_of_a_class_that_is_nearly_everything(metric, labels, message):
    run = run_of(*CLASSIFIED, f"trainer.metric_for_best_model={metric}")
    findings = found("TSK010", run, with_prepared(eval_labels=labels))
    assert [one.message.partition(":")[0] for one in findings] == ([] if message is None else [message])
    better = "eval/mcc" if len(labels) > 1 else "eval/loss"  # of one class, eval/mcc is undefined
    assert all(one.hint == f"set trainer.metric_for_best_model to {better}" for one in findings)


@pytest.mark.parametrize(
    ("metric", "least", "message"),
    [
        ("eval/pearson", 3.5, "all scores of the evaluation are 3.5"),
        ("eval/spearman", 3.5, "all scores of the evaluation are 3.5"),
        ("eval/spearman", 3.0, None),
        ("eval/loss", 3.5, None),
    ],
)
def test_correlations_of_equal_scores_are_undefined(metric, least, message):
    run = run_of(*CLASSIFIED, "classification.problem=regression", f"trainer.metric_for_best_model={metric}")
    findings = found("TSK010", run, with_prepared(eval_scores={"mean": 3.5, "min": least, "max": 3.5}))
    wanted = [] if message is None else [f"metric_for_best_model {metric} is undefined: {message}"]
    assert [one.message for one in findings] == wanted


def test_a_correlation_needs_pairs_with_scores():
    options = (
        "task=contrastive",
        "contrastive.scored_eval_path=a.csv",
        "trainer.metric_for_best_model=eval/spearman",
    )
    (finding,) = found("TSK010", run_of(*options), with_prepared())
    assert finding.message.endswith("is undefined: the evaluation has no pairs with scores")
    scores = {"mean": 2.0, "min": 0.0, "max": 5.0}
    assert found("TSK010", run_of(*options), with_prepared(eval_scores=scores)) == []


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ({}, "no training pair has a score"),
        ({"mean": 1.0, "min": 1.0, "max": 1.0}, "all scores of the training pairs are 1"),
        ({"mean": 2.0, "min": 0.0, "max": 5.0}, None),
    ],
)
def test_pairs_need_scores_that_differ(scores, says):
    run = run_of("task=contrastive", "contrastive.score_column=score")
    findings = found("DAT030", run, with_prepared(scores=scores))
    assert [one.message.rpartition(", but ")[2] for one in findings] == [says][: says is not None]


def test_a_classification_reads_prepared_data():
    [finding] = found("TSK005", run_of(*CLASSIFIED, "dataset.streaming=true"))
    assert finding.path == "dataset.streaming"


@pytest.mark.parametrize(
    ("mean", "least", "most", "severity", "words"),
    [
        (300.0, 295.0, 305.0, None, ""),
        (0.5, 0.5, 0.5, Severity.FAIL, "all training scores are 0.5"),
        (3.0, 3.0, 3.0, Severity.FAIL, "all training scores are 3"),
        (0.0, -0.005, 0.005, None, ""),
        (
            0.0,
            -0.004,
            0.004,
            Severity.WARN,
            "the training scores differ by at most 0.008 (at least 0.01 needed)",
        ),
    ],
)
def test_scores_that_teach_nothing(mean, least, most, severity, words):
    run = run_of(*CLASSIFIED, "classification.problem=regression")
    findings = found("DAT030", run, with_prepared(scores={"mean": mean, "min": least, "max": most}))
    assert [one.severity or Severity.FAIL for one in findings] == ([] if severity is None else [severity])
    assert all(words == one.message for one in findings)
    assert found("DAT030", run, with_prepared(scores={})) == []


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ((), []),
        (("trainer.eval_steps=0",), ["trainer.eval_steps"]),
        (("trainer.eval_steps=1",), []),
        (("trainer.metric_for_best_model=null",), ["trainer.early_stopping_patience"]),
        (("trainer.eval_steps=1000", "trainer.max_steps=3000"), ["trainer.early_stopping_patience"]),
        (("trainer.eval_steps=1000", "trainer.max_steps=3001"), []),
        (("trainer.early_stopping_patience=null", "trainer.eval_steps=0"), []),
    ],
)
def test_early_stopping_needs_evaluations_and_a_metric(overrides, keys):
    stopping = ("trainer.early_stopping_patience=2", "trainer.metric_for_best_model=eval/loss")
    assert [one.path for one in found("TSK003", run_of(*stopping, *overrides))] == keys


@pytest.mark.parametrize(
    ("overrides", "labels", "missing"),
    [
        (("classification.num_labels=2",), {"0": 1, "1": 1}, None),
        (("classification.num_labels=4",), {"0": 1, "2": 1}, "1, 3"),
        (("classification.label_names=[a, b, c]",), {"a": 1, "b": 1}, "c"),
        (("classification.label_names=[a, b]",), {"a": 1, "b": 1}, None),
        (("classification.problem=regression",), {"0": 1, "1": 1}, None),
        (("classification.num_labels=3",), {}, None),
    ],
)
def test_classes_that_no_text_has(overrides, labels, missing):
    findings = found("DAT021", run_of(*CLASSIFIED, *overrides), with_prepared(labels=labels))
    assert [one.path for one in findings] == ([overrides[0].partition("=")[0]] if missing else [])
    assert all(f"no training text has label {missing}, but" in one.message for one in findings)
    assert {one.severity for one in findings} <= {Severity.WARN}


WORDS = ("task=token_classification", "token_classification.label_names=[O, B-PER, I-PER]")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("[]", "label_names has 0 names (at least 2)"),
        ("[O]", "label_names has 1 names (at least 2)"),
        ("[O, B-PER]", None),
        ("[NOUN, VERB]", None),
        ("[O, NOUN]", None),
        ("[O, S-PER, E-LOC]", None),
        ("[O, B-PER, O]", "label_names has O more than once"),
        ("[O, B-PER, PER]", "label_names mixes entity tags (B-PER) and other labels (PER)"),
        ("[O, B-PER, B-]", "label_names mixes entity tags (B-PER) and other labels (B-)"),
        ("[O, B-PER, L-PER]", "label_names mixes entity tags (B-PER) and other labels (L-PER)"),
    ],
)
def test_labels_of_words_that_contradict_each_other(names, message):
    findings = found("TSK005", run_of(*WORDS[:1], f"token_classification.label_names={names}"))
    assert [one.message for one in findings] == ([message] if message else [])


def test_labels_of_words_are_read_from_prepared_data():
    [finding] = found("TSK005", run_of(*WORDS, "dataset.streaming=true"))
    assert finding.path == "dataset.streaming"


@pytest.mark.parametrize(
    ("trained", "evaluated", "severity", "words"),
    [
        ({"O": 5, "B-PER": 5, "I-PER": 1}, {"O": 1}, None, ""),
        ({"O": 5}, {"O": 1}, Severity.FAIL, "all 5 training words have label O"),
        ({"O": 5, "B-PER": 5}, {"I-PER": 1}, Severity.WARN, "labels I-PER of the evaluation"),
    ],
)
def test_labels_of_words_in_training_and_evaluation(trained, evaluated, severity, words):
    findings = found("DAT021", run_of(*WORDS), with_prepared(labels=trained, eval_labels=evaluated))
    assert [one.severity or Severity.FAIL for one in findings] == ([severity] if severity else [])
    assert all(one.message.startswith(words) for one in findings)
    assert all(one.path == "token_classification.label_column" for one in findings)


def test_labels_that_no_training_word_has():
    findings = found("DAT021", run_of(*WORDS), with_prepared(labels={"O": 5, "B-PER": 1}))
    assert [one.message for one in findings] == [
        "no training word has label I-PER, but the head has 3 classes"
    ]
    assert findings[0].path == "token_classification.label_names"


@pytest.mark.parametrize(
    ("split", "counts", "paths"),
    [
        ("words", {"total": 9, "without_token": 0, "cut": 0}, []),
        ("words", {"total": 9, "without_token": 1, "cut": 0}, ["tokenizer"]),
        ("eval_words", {"total": 9, "without_token": 0, "cut": 1}, ["dataset.long_documents"]),
        ("eval_words", {"total": 9, "without_token": 2, "cut": 1}, ["tokenizer", "dataset.long_documents"]),
    ],
)
def test_labels_of_words_that_are_lost(split, counts, paths):
    findings = found("DAT024", run_of(*WORDS), with_prepared(**{split: counts}))
    assert [one.path for one in findings] == paths
    name = {"words": "training", "eval_words": "evaluation"}[split]
    assert all(f"of 9 {name} words" in one.message for one in findings)


TEXT = replace(FACTS, text=(TextFacts(source="a.txt", exists=True, formats={".txt": 1}, words=1000),))


def with_text(**changes: Any) -> Facts:
    return replace(TEXT, text=(replace(TEXT.text[0], **changes),))


LOCAL, REMOTE = "{path: a.txt, weight: 1}", "{name: me/text, weight: 1}"


@pytest.mark.parametrize(
    ("overrides", "is_local"),
    [
        (("dataset.path=a.txt", "dataset.name=null"), True),
        (("dataset.path=s3://texts/a", "dataset.name=null"), False),
        (("dataset.name=me/text",), False),
        (("dataset.name=null", f"dataset.mixture=[{LOCAL}, {REMOTE}]"), True),
        (("dataset.name=null", f"dataset.mixture=[{REMOTE}, {REMOTE}]"), False),
    ],
)
def test_rules_of_files_apply_to_local_text(overrides, is_local):
    run = run_of(*overrides, "dataset.long_documents=truncate")
    reasons = {RULES[code].inapplicable(run, plan_run(run)) for code in ("DAT031", "DAT037")}
    assert reasons == {"" if is_local else "the text is not a local file or folder"}


def test_a_finding_is_at_the_key_of_the_text():
    left_out = with_text(exists=False, message="no such file", hint="correct it")
    run = run_of("dataset.path=a.txt", "dataset.name=null")
    assert found("DAT032", run, left_out) == [], "DAT001 reports it"
    (one,) = found("DAT032", run, replace(left_out, data=None))
    mixture = run_of(f"dataset.mixture=[{LOCAL}]", "dataset.name=null")
    (mixed,) = found("DAT032", mixture, with_text(message="no column"))
    assert (one.path, mixed.path) == ("dataset.path", "dataset.mixture")


@pytest.mark.parametrize(
    ("texts", "more", "is_found"),
    [
        ([(8, 0)], (), False),
        ([(7, 0)], (), True),
        ([(7, 1)], (), True),
        ([(8, 0)], ("dataset.eval_samples=1",), True),
        ([(8, 1)], ("dataset.eval_samples=1",), False),
        ([(4, 1), (4, 0)], ("dataset.eval_samples=1",), False),
        ([(7, 0), (None, 0)], (), False),
        ([], (), False),
    ],
)
def test_texts_are_counted_without_those_held_out(texts, more, is_found):
    none = ("dataset.eval_samples=null", "dataset.validation_split=null")
    rows = ("trainer.per_device_train_batch_size=8", "dataset.path=a.txt", "dataset.name=null")
    read = tuple(replace(TEXT.text[0], documents=number, num_eval_files=files) for number, files in texts)
    assert bool(found("DAT037", run_of(*rows, *none, *more), replace(FACTS, text=read))) == is_found


@pytest.mark.parametrize(
    ("overrides", "epochs", "edit"),
    [
        ((), 43.0, "trainer.max_steps to 4651"),
        (("trainer.max_steps=50",), 1000.0, "trainer.max_steps to 1"),
    ],
)
def test_the_hint_reads_the_text_four_times(overrides, epochs, edit):
    repeated = with_prepared(epochs=epochs)
    (finding,) = found("DAT004", run_of(*overrides), repeated)
    assert f"set {edit}, which reads this text 4 times" in finding.hint
    (of_epochs,) = found("DAT004", run_of(*overrides), repeated, max_steps=20)
    assert "set trainer.max_epochs to 4, which" in of_epochs.hint


def test_the_most_epochs_are_allowed():
    development = run_of("dataset.path=a.txt", "dataset.name=null", profile="gpu")
    assert found("DAT004", development, with_prepared(epochs=40.0)) == []
    assert found("DAT025", run_of(), with_facts("inspection", prepared=None), epochs=None) == []


@pytest.mark.parametrize(("task", "warns"), [("pretrain", False), ("sft", False), ("causal", True)])
def test_a_decoder_learns_a_text_by_heart_sooner(task, warns):
    model = ("model.type=hf", "model.architecture=llama") if task != "pretrain" else ()
    run = run_of("dataset.path=a.txt", "dataset.name=null", f"task={task}", *model, profile="gpu")
    unknown = with_facts("inspection", prepared=None)
    for epochs, finds in ((8.0, False), (8.1, warns)):
        severities = [each.severity for each in found("DAT004", run, with_prepared(epochs=epochs))]
        assert severities == [Severity.WARN] * finds
        assert len(found("DAT025", run, unknown, epochs=epochs)) == finds
    (far,) = found("DAT004", run, with_prepared(epochs=40.1))
    assert far.severity is None, "the severity of the rule, which fails"


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        ((), "set tokenizer.name to null"),
        (("tokenizer.path=tok", "tokenizer.name=null"), "set tokenizer.path to null"),
        (("tokenizer.name=null",), "set tokenizer.strip_accents to false"),
        (("model.pretrained_checkpoint=base",), "replace model.pretrained_checkpoint base with weights"),
    ],
)
def test_words_that_a_tokenizer_changes(overrides, hint):
    run = run_of("dataset.path=a.txt", "dataset.name=null", *overrides)
    altered = with_text(altered_words=500, altered_example=("café\x1b", "cafe\x1b"))
    (finding,) = found("DAT035", run, altered)
    assert "50.0% of the first 1,000 words in a.txt, such as café\ufffd to cafe\ufffd" in finding.message
    assert finding.hint.startswith(hint)
    resumed = replace(altered, resume=replace(FACTS.resume, exists=True))
    assert found("DAT035", run, resumed) == [], "its tokenizer cannot change"
    assert found("DAT035", run, replace(resumed, resume=replace(resumed.resume, is_continued=True)))


@pytest.mark.parametrize(
    ("overrides", "number"), [((), 0), (WORDS, 1), (CLASSIFIED, 0), (["task=question_answering"], 0)]
)
def test_the_case_of_labelled_words(overrides, number):
    lowered = with_text(lowered_words=21, lowered_example=("Rome", "rome"))
    run = run_of("dataset.path=a.txt", "dataset.name=null", *overrides)
    assert len(found("DAT035", run, lowered)) == number
    assert found("DAT035", run, with_text(lowered_words=20, lowered_example=("Rome", "rome"))) == []


ADAPTED = (*CLASSIFIED, "adapter.type=lora", "model.pretrained_checkpoint=base", "model.kernel_backend=torch")


@pytest.mark.parametrize(
    ("overrides", "key", "problem"),
    [
        ((), None, ""),
        (("adapter.r=767",), None, ""),
        (("adapter.r=768",), "adapter.r", "r 768 is not below 768, the smaller dimension of qkv"),
        (("adapter.r=768", "adapter.type=null"), None, ""),
        (("adapter.r=768", "adapter.target_modules=[qkv]"), "adapter.r", ""),
        (("adapter.r=767", "adapter.target_modules=[qkv]"), None, ""),
        (
            ("adapter.target_modules=[qkv, query]",),
            "adapter.target_modules",
            "target_modules names query, which the blocks lack",
        ),
        (("adapter.target_modules=[]",), "adapter.target_modules", "target_modules names no layer"),
        (("adapter.target_modules=[w12]", "model.hidden_act=gelu"), "adapter.target_modules", ""),
        (("adapter.target_modules=[ffn.0]", "model.hidden_act=gelu"), None, ""),
        (("optimizer.name=muon",), "optimizer.name", ""),
        (("optimizer.name=lion",), None, ""),
        (("distributed.mode=fsdp2", "distributed.nproc_per_node=2"), None, ""),
    ],
)
def test_adapters_that_do_not_fit(overrides, key, problem):
    findings = found("TSK008", run_of(*ADAPTED, *overrides))
    assert [one.path for one in findings] == ([key] if key else [])
    assert all(one.message.startswith(problem) for one in findings)


def test_an_adapter_needs_peft():
    packages = {name: each for name, each in FACTS.software.packages.items() if name != "peft"}
    without, with_it = (with_facts("software", packages=packages | more) for more in ({}, {"peft": "0.21.2"}))
    assert "adapter.type" in [one.path for one in found("HST001", run_of(*ADAPTED), without)]
    assert "adapter.type" not in [one.path for one in found("HST001", run_of(*ADAPTED), with_it)]
    assert "adapter.type" not in [one.path for one in found("HST001", run_of(*CLASSIFIED), without)]


def test_keys_of_an_adapter_without_a_type_have_no_effect():
    assert [one.path for one in found("CFG013", run_of(*CLASSIFIED, "adapter.r=4"))] == ["adapter.r"]
    assert [one.path for one in found("CFG013", run_of(*ADAPTED, "adapter.r=4"))] == []


def test_a_model_without_linear_layers_has_no_adapter():
    gpt2 = ("task=causal", "model.type=hf", "model.architecture=gpt2", "adapter.type=lora")
    (violation,) = found("TSK008", run_of(*gpt2))
    assert violation.path == "adapter.type"
    assert "no linear layers" in violation.message
    assert "no linear layers" not in str(found("TSK008", run_of(*gpt2, "model.architecture=llama")))
