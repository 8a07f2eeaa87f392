"""Reader with transformers' auto classes, which run the modeling code in the folder if it has any."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.dynamic_module_utils import get_class_from_dynamic_module

DISTRIBUTIONS = ("transformers", "torch", "tokenizers", "safetensors")


def read(folder: str, texts: list[str]) -> dict[str, np.ndarray]:
    """Return token ids, attention mask, hidden states and, if the model has a head, logits of the texts.

    For model type `nsa`, sums of the weights replace hidden states and logits.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    if json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))["model_type"] == "nsa":
        return {"input_ids": ids.numpy(), "attention_mask": mask.numpy(), "weights": weight_sums(folder)}
    encoder = AutoModel.from_pretrained(folder, trust_remote_code=True).float().eval()
    head = head_class(folder)
    with torch.no_grad():
        hidden = encoder(ids, attention_mask=mask).last_hidden_state
        outputs = {"input_ids": ids, "attention_mask": mask, "last_hidden_state": hidden * mask[..., None]}
        if head is not None and head is not type(encoder):
            model = head.from_pretrained(folder).float().eval()
            # A model that compares choices gets one per row.
            rows = (ids[:, None], mask[:, None]) if head.__name__.endswith("MultipleChoice") else (ids, mask)
            found = model(input_ids=rows[0], attention_mask=rows[1])
            spans = [found[name] for name in ("start_logits", "end_logits") if name in found]
            logits = torch.stack(spans, -1) if spans else found.logits
            outputs["logits"] = logits * mask[..., None] if logits.dim() == 3 else logits
    return {name: tensor.numpy() for name, tensor in outputs.items()}


def weight_sums(folder: str) -> np.ndarray:
    """Return each weight's sum and absolute sum, ordered by name.

    flash-linear-attention loads the weights if it is installed; else they are read from the file.
    """
    in_file = load_file(Path(folder, "model.safetensors"))
    weights = in_file
    if find_spec("fla"):
        from fla.models.nsa import NSAForCausalLM

        loaded = NSAForCausalLM.from_pretrained(folder).state_dict()
        weights = {name: loaded[name] for name in in_file}
    values = [weights[name].double() for name in sorted(weights)]
    return np.array([[each.sum(), each.abs().sum()] for each in values])


def head_class(folder: str) -> Any:
    """Return the class of `architectures` in config.json; None if it is the encoder without a head."""
    import transformers

    config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    name, auto_map = config["architectures"][0], config.get("auto_map", {})
    if auto_map.get("AutoModel", "").endswith(f".{name}"):
        return None
    paths = [path for path in auto_map.values() if path.endswith(f".{name}")]
    if paths:
        AutoConfig.from_pretrained(folder, trust_remote_code=True)
        return get_class_from_dynamic_module(paths[0], folder)
    return getattr(transformers, name)
