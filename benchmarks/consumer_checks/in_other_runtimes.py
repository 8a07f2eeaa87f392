"""Checks in ONNX Runtime and llama.cpp."""

import json
from pathlib import Path

import numpy as np
from registry import TEXTS, TRUST, check, close, embeddings


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
