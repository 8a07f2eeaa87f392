"""Checks of an exported checkpoint in other libraries: `consumer_checks.py CHECK EXPORTED WORK_DIR`.

Runs in an environment without this project. EXPORTED holds the folders of `neobert-launch export`. A check
prints what it saw as JSON; an exception is a failure.
"""

import importlib.metadata
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

TEXTS = [
    "return the given value",
    "a list of names and the file that holds them, one to a line, with the number of bytes of each",
    "the module reads a string",
    "error",
]
LABELS = [0, 1, 0, 1]
CHECKS: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {}
TRUST = {"trust_remote_code": True}


def check(*distributions: str):
    """Register a check by its name, with the distributions whose versions it reports."""

    def register(function):
        CHECKS[function.__name__] = function, distributions
        return function

    return register


def close(found, wanted, limit: float = 1e-5) -> str:
    """Return the largest difference. Raises AssertionError beyond the limit."""
    gap = float(np.abs(np.asarray(found) - np.asarray(wanted)).max())
    assert gap <= limit, f"differs by {gap:.3g} (limit {limit:g})"
    return f"{gap:.1e}"


def embeddings(exported: Path) -> np.ndarray:
    """Embed each text alone with the encoder, by the pooling of config.json."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(exported / "hf", **TRUST)
    model = AutoModel.from_pretrained(exported / "hf", **TRUST).eval()
    rows = []
    with torch.no_grad():
        for text in TEXTS:
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            how = model.config.pooling
            rows.append(hidden[0] if how == "cls" else hidden.mean(0) if how == "avg" else hidden.amax(0))
    return torch.stack(rows).numpy()


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


@check("onnxruntime", "tokenizers")
def onnx_runtime(exported: Path) -> str:
    """Run the graph at three batch sizes and lengths."""
    import onnxruntime
    from tokenizers import Tokenizer

    session = onnxruntime.InferenceSession(str(exported / "onnx" / "onnx" / "model.onnx"))
    tokenizer = Tokenizer.from_file(str(exported / "onnx" / "tokenizer.json"))
    tokenizer.enable_padding()
    wanted, gaps = embeddings(exported), []
    for count in (1, 2, 4):
        rows = tokenizer.encode_batch(TEXTS[:count])
        mask = np.array([row.attention_mask for row in rows], dtype=np.int64)
        feed = {"input_ids": np.array([row.ids for row in rows], dtype=np.int64), "attention_mask": mask}
        hidden = session.run(None, feed)[0]
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        gaps.append(close(mean, wanted[:count]))
    return f"batches of 1, 2 and 4: {', '.join(gaps)}"


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


@check("xllamacpp", "gguf")
def llama_cpp(exported: Path) -> str:
    """Embed texts with llama.cpp."""
    found = embed_in_llama_cpp(exported / "gguf-ready" / "model.gguf", TEXTS)
    return f"against the model {close(found, embeddings(exported))}"


@check("xllamacpp", "gguf")
def llama_cpp_converter(exported: Path, work: Path) -> str:
    """Convert the folder of transformers as llama.cpp's converter does, and see that another model comes out.

    Token ids are given, so that only the graph is compared, and the first token's vector, which it pools.
    """
    import torch
    from transformers import AutoModel, AutoTokenizer

    convert_by_rules(exported / "hf", work / "converted.gguf")
    tokenizer = AutoTokenizer.from_pretrained(exported / "hf", **TRUST)
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    model = AutoModel.from_pretrained(exported / "hf", **TRUST).eval()
    with torch.no_grad():
        wanted = np.stack([model(torch.tensor([row])).last_hidden_state[0, 0].numpy() for row in ids])
    found = embed_in_llama_cpp(work / "converted.gguf", ids)
    cosines = (found * wanted).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)
    gap = float(np.abs(found - wanted).max())
    assert gap > 1e-3, "the converter now makes the same model: change the table and docs/export.md"
    return (
        f"another model: vectors of the first token differ by {gap:.2g}, cosine down to {cosines.min():.3f}"
    )


def convert_by_rules(folder: Path, file: Path) -> None:
    """Write a GGUF as conversion/bert.py of llama.cpp (2026-11) does for NeoBERT, with a plain vocabulary."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "neo-bert")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_causal_attention(False)
    writer.add_feed_forward_length(int(2 * config["intermediate_size"] / 3))
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_layer_norm_rms_eps(config["norm_eps"])
    writer.add_pooling_type(gguf.PoolingType.CLS)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(1)
    writer.add_token_list([f"[{number}]" for number in range(config["vocab_size"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.NEO_BERT, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.startswith("decoder."):
            writer.add_tensor(names.get_name(name.removeprefix("model."), (".weight",)), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def embed_in_llama_cpp(file: Path, rows: list) -> np.ndarray:
    """Embed texts or token ids with llama.cpp, without normalising: [N, D]."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.embedding, params.warmup, params.n_parallel, params.n_gpu_layers = True, False, 1, 0
    params.n_ctx = params.n_batch = params.n_ubatch = 128
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    answers = [server.handle_embeddings({"input": row, "model": "m", "embd_normalize": -1}) for row in rows]
    return np.array([answer["data"][0]["embedding"] for answer in answers])


def main(name: str, exported: str, work: str) -> None:
    """Run one check and print the evidence."""
    function, distributions = CHECKS[name]
    takes_work = "work" in inspect.signature(function).parameters
    evidence = function(Path(exported), *([Path(work)] if takes_work else []))
    versions = {each: importlib.metadata.version(each) for each in distributions}
    print(json.dumps({"evidence": evidence, "versions": versions}))


if __name__ == "__main__":
    main(*sys.argv[1:])
