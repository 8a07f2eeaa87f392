"""Checks in transformers, and in peft on top of its models."""

from pathlib import Path

from registry import LABELS, TEXTS, TRUST, check, close

SENTENCE = "Mara Jonas moved from Altburg to New Norstad in 17 ."
ENTITIES = {"Mara Jonas": "PER", "Altburg": "LOC", "New Norstad": "LOC"}
"""Of a sentence as docs/token-classification.md writes them."""


@check("transformers", "torch")
def auto_classes(exported: Path) -> str:
    """Load the encoder and every head with the auto classes and run each on a padded batch."""
    import torch
    import transformers

    folder = exported / "hf"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **TRUST)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    encoder = transformers.AutoModel.from_pretrained(folder, **TRUST).eval()
    shapes = []
    with torch.no_grad():
        together = encoder(**batch).last_hidden_state
        alone = encoder(**tokenizer(TEXTS[0], return_tensors="pt")).last_hidden_state
        gap = close(together[0, : alone.shape[1]], alone[0])
        for task in ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering"):
            model = getattr(transformers, f"AutoModelFor{task}").from_pretrained(folder, **TRUST).eval()
            output = model(**batch)
            shapes.append(f"{task} {tuple(output[0].shape)}")
        model = transformers.AutoModelForMultipleChoice.from_pretrained(folder, **TRUST).eval()
        output = model(**{name: value[None] for name, value in batch.items()})
        shapes.append(f"MultipleChoice {tuple(output.logits.shape)}")
    return f"{', '.join(shapes)}; padded against alone {gap}"


@check("transformers", "torch")
def meta_loading(exported: Path) -> str:
    """Load ten times over the meta device: every load computes the same bits."""
    import torch
    from transformers import AutoModel

    ids = torch.arange(5, 17)[None]
    outputs = []
    for _ in range(10):
        model = AutoModel.from_pretrained(exported / "hf", low_cpu_mem_usage=True, **TRUST).eval()
        assert not list(model.buffers())
        with torch.no_grad():
            outputs.append(model(ids).last_hidden_state)
    assert all(torch.equal(outputs[0], each) for each in outputs)
    return "10 loads, the same bits; no buffers"


def _pipeline(task: str, exported: Path, **options):
    from transformers import pipeline

    return pipeline(task, model=str(exported / "hf"), device="cpu", **options, **TRUST)


@check("transformers")
def pipeline_fill_mask(exported: Path) -> str:
    """Fill a mask."""
    filled = _pipeline("fill-mask", exported)("return a [MASK] of the given object")
    return f"{len(filled)} guesses, first {filled[0]['token_str']!r}"


@check("transformers")
def pipeline_feature_extraction(exported: Path) -> str:
    """Extract hidden states of a batch of mixed lengths."""
    features = _pipeline("feature-extraction", exported)(TEXTS, batch_size=4)
    return f"{len(features)} texts, width {len(features[0][0][0])}"


@check("transformers")
def pipeline_text_classification(exported: Path) -> str:
    """Classify texts and a pair (fresh head)."""
    scored = _pipeline("text-classification", exported)([*TEXTS, {"text": TEXTS[0], "text_pair": TEXTS[1]}])
    return f"{len(scored)} scores, labels {sorted({each['label'] for each in scored})}"


@check("transformers")
def pipeline_token_classification(exported: Path) -> str:
    """Classify tokens (fresh head)."""
    tagged = _pipeline("token-classification", exported)(TEXTS[1])
    return f"{len(tagged)} tokens with offsets"


@check("transformers")
def pipeline_words(exported: Path) -> str:
    """Find persons and places with the head that a run has trained."""
    from transformers import pipeline

    find = pipeline(
        "token-classification", str(exported / "words"), aggregation_strategy="first", device="cpu", **TRUST
    )
    found = {entity["word"].title(): entity["entity_group"] for entity in find(SENTENCE)}
    assert found == ENTITIES, found
    return ", ".join(f"{kind} {words}" for words, kind in found.items())


@check("transformers")
def pipeline_question_answering(exported: Path) -> str:
    """Answer a question, by the pipeline where this release has it, else by the head itself."""
    from transformers import pipelines

    if "question-answering" in pipelines.PIPELINE_REGISTRY.get_supported_tasks():
        answer = _pipeline("question-answering", exported)(question=TEXTS[0], context=TEXTS[1])
        return f"answer {answer['answer']!r}"
    import torch
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(exported / "hf", **TRUST)
    model = AutoModelForQuestionAnswering.from_pretrained(exported / "hf", **TRUST).eval()
    batch = tokenizer(TEXTS[0], TEXTS[1], return_tensors="pt")
    with torch.no_grad():
        output = model(**batch)
    return f"this release has no such pipeline; the head gives {tuple(output.start_logits.shape)}"


@check("peft", "transformers")
def peft_lora(exported: Path, work: Path) -> str:
    """Train a LoRA classifier for three steps, save the adapter, reload it: the same logits."""
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    def load():
        torch.manual_seed(0)
        return AutoModelForSequenceClassification.from_pretrained(exported / "hf", **TRUST)

    batch = AutoTokenizer.from_pretrained(exported / "hf", **TRUST)(TEXTS, padding=True, return_tensors="pt")
    settings = LoraConfig(
        task_type="SEQ_CLS", target_modules="all-linear", modules_to_save=["dense", "classifier"]
    )
    model = get_peft_model(load(), settings)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
    losses = []
    for _ in range(3):
        loss = model(**batch, labels=torch.tensor(LABELS)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    model.eval().save_pretrained(work / "adapter")
    torch.manual_seed(1)
    again = PeftModel.from_pretrained(load(), work / "adapter").eval()
    with torch.no_grad():
        gap = close(again(**batch).logits, model(**batch).logits, 0.0)
    merged = again.merge_and_unload().eval()
    with torch.no_grad():
        merged_gap = close(merged(**batch).logits, model(**batch).logits)
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f}; reloaded {gap}, merged {merged_gap}"


@check("peft", "transformers")
def peft_of_a_run(exported: Path) -> str:
    """Load the adapter of a run on the weights that it started from: what the merged weights compute."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForTokenClassification as Auto
    from transformers import AutoTokenizer

    merged = Auto.from_pretrained(exported / "words", **TRUST).eval()
    base = Auto.from_pretrained(exported / "words-base", num_labels=merged.num_labels, **TRUST).eval()
    batch = AutoTokenizer.from_pretrained(exported / "words", **TRUST)(SENTENCE, return_tensors="pt")
    with torch.no_grad():
        before = base(**batch).logits
        adapted = PeftModel.from_pretrained(base, exported / "words" / "adapter").eval()
        found, wanted = adapted(**batch).logits, merged(**batch).logits
    moved = float((before - wanted).abs().max())
    gap = close(found, wanted)
    assert moved > 100 * float(gap), "the adapter changes nothing"
    return f"against the merged weights {gap}; without it {moved:.2g}"


@check("transformers", "accelerate")
def transformers_trainer(exported: Path, work: Path) -> str:
    """Train a masked language model for a few steps with transformers' Trainer; save and resume."""
    from transformers import (
        AutoModelForMaskedLM,
        AutoTokenizer,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainingArguments,
    )

    tokenizer = AutoTokenizer.from_pretrained(exported / "hf", **TRUST)
    rows = [tokenizer(text) for text in TEXTS * 4]
    settings = TrainingArguments(
        str(work / "trainer"), max_steps=6, per_device_train_batch_size=8, report_to="none", use_cpu=True,
        disable_tqdm=True, learning_rate=3e-3, logging_steps=1, save_steps=6,
    )  # fmt: skip
    trainer = Trainer(
        model=AutoModelForMaskedLM.from_pretrained(exported / "hf", **TRUST),
        args=settings,
        train_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3),
    )
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0], losses
    saved = AutoModelForMaskedLM.from_pretrained(work / "trainer" / "checkpoint-6", **TRUST)
    assert type(saved).__module__.startswith("transformers_modules")
    return f"6 steps, loss {losses[0]:.2f} to {losses[-1]:.2f}; its checkpoint loads"
