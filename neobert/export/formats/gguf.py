"""Writer of model.gguf, which llama.cpp runs and quantizes, using llama.cpp's `gguf` package.

llama.cpp's converter is not used, for these reasons. It keeps the rows of qkv grouped by head, but the graph
of llama.cpp expects all queries, then all keys, then all values. It writes rope base 10,000, CLS pooling and
2/3 of intermediate_size, regardless of the config. It omits the id of the first token, for which llama.cpp
then uses 101. It fails for vocabularies that it does not know. Sources: llama.cpp, conversion/bert.py and
src/models/neo-bert.cpp.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from neobert.data.tokenize.framing import measure_framing
from neobert.export.formats.writer import Writer, describe_setting_differences
from neobert.export.reference import Arrays, Reference
from neobert.export.source import Source
from neobert.export.weights import unique_weights
from neobert.model import NeoBERTConfig

MODEL_FILE = "model.gguf"
ARCHITECTURE = "neo-bert"
POOLING_TYPES = {"avg": "MEAN", "cls": "CLS"}
WORD_START, CONTINUATION = "\N{LOWER ONE EIGHTH BLOCK}", "##"
NAMES = {
    "encoder.weight": "token_embd.weight",
    "layer_norm.weight": "enc.output_norm.weight",
    "attention_norm.weight": "attn_norm.weight",
    "qkv.weight": "attn_qkv.weight",
    "wo.weight": "attn_output.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "ffn.w12.weight": "ffn_up.weight",
    "ffn.w3.weight": "ffn_down.weight",
}
"""GGUF names of the encoder's tensors; in block n, the name has the prefix "blk.n."."""


def refusal(source: Source) -> str:
    """Return the reason why llama.cpp cannot run this model; empty if it can."""
    if not source.is_neobert:
        return f"llama.cpp's {ARCHITECTURE} graph supports NeoBERT only, not {type(source.model).__name__}"
    if source.is_classifier:
        return "llama.cpp supports the encoder only, but the checkpoint is a classifier"
    config = source.model.config
    if config.pooling not in POOLING_TYPES:
        return f"llama.cpp does not support pooling {config.pooling}: pass --pooling avg or --pooling cls"
    if other := describe_setting_differences(source):
        return f"llama.cpp's {ARCHITECTURE} graph does not support {other}"
    kind = json.loads(source.tokenizer_files["tokenizer.json"])["model"].get("type")
    if kind != "WordPiece":
        return f"llama.cpp needs a WordPiece tokenizer for {ARCHITECTURE}, but the model has {kind}"
    framing, markers = measure_framing(source.tokenizer.backend_tokenizer), ("cls_token_id", "sep_token_id")
    if [framing.start, framing.end] != [(getattr(source.tokenizer, name),) for name in markers]:
        return "llama.cpp reads a text as [CLS] text [SEP], but the tokenizer adds other special tokens"
    return ""


def write(source: Source, folder: Path) -> dict[str, Any]:
    """Write the encoder in fp32, its settings and its vocabulary; return entries for conversion.json."""
    import gguf

    writer = gguf.GGUFWriter(folder / MODEL_FILE, ARCHITECTURE)
    _add_settings(writer, source)
    _add_vocabulary(writer, source)
    for name, tensor in unique_weights(source.encoder).items():
        writer.add_tensor(gguf_name(name), to_gguf_layout(name, tensor.detach(), source.model.config).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"pooling": source.model.config.pooling, "quantise": f"llama-quantize {MODEL_FILE} q8_0.gguf q8_0"}


def gguf_name(name: str) -> str:
    """Return the GGUF name of an encoder tensor, such as blk.0.attn_qkv.weight."""
    if not name.startswith("transformer_encoder."):
        return NAMES[name]
    _, block, rest = name.split(".", 2)
    return f"blk.{block}.{NAMES[rest]}"


def to_gguf_layout(name: str, tensor: Tensor, config: NeoBERTConfig) -> Tensor:
    """Convert a tensor to the form that llama.cpp expects.

    The rows of qkv are reordered from (head, q/k/v) to (q/k/v, head), and the embedding is multiplied by
    `embedding_multiplier`. Other tensors are unchanged.
    """
    if name == "encoder.weight":
        return tensor * config.embedding_multiplier
    if not name.endswith("qkv.weight"):
        return tensor
    by_head: Tensor = tensor.unflatten(0, (config.num_attention_heads, 3, -1))
    return by_head.transpose(0, 1).flatten(0, 2).contiguous()


def _add_settings(writer: Any, source: Source) -> None:
    import gguf

    config = source.model.config
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.ffn_width)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_causal_attention(False)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_pooling_type(gguf.PoolingType[POOLING_TYPES[config.pooling]])


def _add_vocabulary(writer: Any, source: Source) -> None:
    """Write the WordPiece vocabulary in llama.cpp's form: word starts are marked, continuations are not."""
    import gguf

    tokenizer = source.tokenizer
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    words: list[str] = []
    kinds: list[int] = []
    for number in range(source.model.config.vocab_size):
        is_known = number < len(tokenizer)
        word = str(tokenizer.convert_ids_to_tokens(number)) if is_known else f"[UNUSED{number}]"
        is_word = is_known and word not in special
        kinds.append(gguf.TokenType.NORMAL if is_word else gguf.TokenType.CONTROL)
        words.append(_gguf_token(word) if is_word else word)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(1)
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(tokenizer.cls_token_id)
    writer.add_eos_token_id(tokenizer.sep_token_id)
    writer.add_sep_token_id(tokenizer.sep_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    if tokenizer.mask_token_id is not None:
        writer.add_mask_token_id(tokenizer.mask_token_id)
    if tokenizer.unk_token_id is not None:
        writer.add_unk_token_id(tokenizer.unk_token_id)


def _gguf_token(word: str) -> str:
    return word.removeprefix(CONTINUATION) if word.startswith(CONTINUATION) else WORD_START + word


def expected_outputs(_: Source, reference: Reference) -> Arrays:
    """Return the expected pooled vectors for token ids and, to test the tokenizer, for texts."""
    return {"pooled": reference.outputs["pooled"], "pooled, of texts": reference.outputs["pooled"]}


WRITER = Writer(write, "gguf_folder", expected_outputs, refusal)
