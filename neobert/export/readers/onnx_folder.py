"""Reader of onnx/model.onnx with ONNX Runtime, and of the tokenizer with `tokenizers`."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

DISTRIBUTIONS = ("onnxruntime", "tokenizers")


def read(folder: str, texts: list[str]) -> dict[str, np.ndarray]:
    """Return the graph's outputs for one padded batch, and for each text alone to test dynamic axes."""
    ids, mask = tokenize(folder, texts)
    session = onnxruntime.InferenceSession(
        str(Path(folder, "onnx", "model.onnx")), providers=["CPUExecutionProvider"]
    )
    name = session.get_outputs()[0].name
    together = session.run([name], {"input_ids": ids, "attention_mask": mask})[0]
    alone = np.zeros_like(together)
    for row, length in enumerate(mask.sum(1)):
        feed = {"input_ids": ids[row : row + 1, :length], "attention_mask": mask[row : row + 1, :length]}
        output = session.run([name], feed)[0][0]
        alone[row, : len(output)] = output
    per_token = together.ndim == 3
    padded = together * mask[..., None] if per_token else together
    return {"input_ids": ids, "attention_mask": mask, name: padded, f"{name}, one text at a time": alone}


def tokenize(folder: str, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return input_ids and attention_mask [B, S] of the texts, padded on the right."""
    tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
    pad = json.loads(Path(folder, "special_tokens_map.json").read_text(encoding="utf-8"))["pad_token"]
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id(pad), pad_token=pad)
    encodings = tokenizer.encode_batch(texts)
    ids = np.array([each.ids for each in encodings], dtype=np.int64)
    return ids, np.array([each.attention_mask for each in encodings], dtype=np.int64)
