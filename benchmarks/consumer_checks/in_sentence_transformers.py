"""Checks in sentence-transformers, and in mteb on top of its models."""

from pathlib import Path

import numpy as np
from registry import TEXTS, TRUST, check, close, embeddings


@check("sentence-transformers", "transformers")
def sentence_transformers_encode(exported: Path, work: Path) -> str:
    """Encode, save and reload; state whether the unpadded path is open."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(exported / "sentence-transformers"), device="cpu", **TRUST)
    gap = close(model.encode(TEXTS), embeddings(exported))
    model.save(str(work / "saved"))
    again = SentenceTransformer(str(work / "saved"), device="cpu", **TRUST)
    reloaded = close(again.encode(TEXTS), model.encode(TEXTS))
    backend = model[0].auto_model.is_backend_compatible()
    assert backend
    return (
        f"against the model {gap}, reloaded {reloaded}; accepts attention backends, "
        f"can_flatten_inputs {model[0].can_flatten_inputs} on this CPU"
    )


@check("sentence-transformers")
def sentence_transformers_bare_tokenizer(exported: Path) -> str:
    """Encode with the tokenizer files alone: special tokens come with every export."""
    from sentence_transformers import SentenceTransformer

    names = {path.name for path in (exported / "sentence-transformers").iterdir()}
    assert {"tokenizer_config.json", "special_tokens_map.json"} <= names
    tokenizer = SentenceTransformer(str(exported / "sentence-transformers"), device="cpu", **TRUST).tokenizer
    return f"padding token {tokenizer.pad_token}, longest row {tokenizer.model_max_length}"


@check("sentence-transformers")
def sentence_transformers_trainer(exported: Path, work: Path) -> str:
    """Take steps of a cached contrastive loss with its own trainer."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.training_args import SentenceTransformerTrainingArguments

    model = SentenceTransformer(str(exported / "sentence-transformers"), device="cpu", **TRUST)
    before = model.encode(TEXTS)
    rows = Dataset.from_dict({"anchor": TEXTS, "positive": TEXTS[1:] + TEXTS[:1]})
    settings = SentenceTransformerTrainingArguments(
        str(work / "st"), max_steps=2, per_device_train_batch_size=4, report_to="none", use_cpu=True,
        save_strategy="no", disable_tqdm=True, learning_rate=1e-3,
    )  # fmt: skip
    loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=2)
    trainer = SentenceTransformerTrainer(model=model, args=settings, train_dataset=rows, loss=loss)
    trained = trainer.train()
    moved = float(np.abs(model.encode(TEXTS) - before).max())
    assert moved > 1e-4
    return f"2 steps, loss {trained.training_loss:.2f}, embeddings moved by {moved:.2f}"


@check("sentence-transformers")
def cross_encoder(exported: Path, work: Path) -> str:
    """Score pairs (fresh head), save and reload."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(exported / "hf"), num_labels=1, device="cpu", **TRUST)
    pairs = [[TEXTS[0], TEXTS[1]], [TEXTS[2], TEXTS[3]]]
    scores = model.predict(pairs)
    model.save_pretrained(str(work / "cross"))
    again = CrossEncoder(str(work / "cross"), device="cpu", **TRUST).predict(pairs)
    return f"{len(scores)} scores, reloaded {close(again, scores)}"


@check("sentence-transformers")
def multi_vector_encoder(exported: Path) -> str:
    """Encode queries and documents as one vector a token."""
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(exported / "hf"), device="cpu", **TRUST)
    queries, documents = model.encode_query(TEXTS[:1]), model.encode_document(TEXTS[1:])
    return f"query {tuple(queries[0].shape)}, document {tuple(documents[0].shape)}"


@check("mteb", "sentence-transformers")
def mteb_mock_run(exported: Path) -> str:
    """Run mteb's mock run: every type of task that takes texts, on built-in data."""
    import mteb
    from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(exported / "sentence-transformers"), device="cpu", **TRUST)
    results = mteb.mock_run(SentenceTransformerEncoderWrapper(model))
    ran = {name: each for name, each in results.items() if each is not None}
    failed = sorted(name for name, each in ran.items() if type(each).__name__ == "TaskError")
    passed = len(ran) - len(failed)
    assert results.all_passed, [str(results[name])[-300:] for name in failed[:3]]
    return f"{passed} of {len(ran)} tasks that take texts ran; {len(failed)} need packages that are not here"
