"""Load folders in a process that has torch and transformers but not this project; print JSON reports."""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType


class _Blocked:
    """Stand in for an environment without the project: its packages cannot be found."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("neobert", "launcher", "profiles", "validators"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _digest(model):
    from hashlib import sha256

    parts = sorted(model.state_dict().items())
    return {name: sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in parts}


def main(folders: list[str]) -> None:
    sys.meta_path.insert(0, _Blocked())
    reports = [report_on(folder) for folder in folders]
    del sys.meta_path[0]
    load_without_trust(folders[0])
    print(json.dumps(reports))


def load_without_trust(folder: str) -> None:
    """Fail to load with the project there, but not imported; then import it and load."""
    from transformers import AutoModel

    with redirect_stdout(sys.stderr):  # where transformers asks for the trust
        refusal = refusal_of(lambda: AutoModel.from_pretrained(folder))
    assert "trust_remote_code" in refusal, refusal
    import neobert.model

    assert type(AutoModel.from_pretrained(folder)) is neobert.model.NeoBERT


def refusal_of(load) -> str:
    try:
        load()
    except ValueError as error:
        return str(error)
    return ""


def kernel_for_short_rows(encoder) -> str:
    """Return the kernel that `auto` takes on a GPU with Triton: triton_packed is in the project only."""
    choose_backend = sys.modules[type(encoder).__module__].choose_backend
    names = choose_backend.__globals__  # of one merged file, or of several
    before = sys.modules.get("triton")
    sys.modules["triton"] = before or ModuleType("triton")
    gpu = names["Gpu"]("this GPU", (8, 0))
    short = names["Environment"]("cuda", "bfloat16", 64, (gpu,), (), row_length=16)
    chosen = choose_backend("auto", short).name
    if before is None:
        del sys.modules["triton"]
    return chosen


def report_on(folder: str) -> dict[str, object]:
    import torch
    from transformers import (
        AutoModel,
        AutoModelForMaskedLM,
        AutoModelForTokenClassification,
        AutoTokenizer,
        pipeline,
    )

    encoder = AutoModel.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    ids = torch.arange(5, 14)
    bounds = torch.tensor([0, 4, 9, 9], dtype=torch.int32)
    with torch.no_grad():
        packed = model(ids[None], cu_seq_lens_q=bounds, max_length_q=5).logits[0]
        alone = model(ids[None, 4:]).logits[0]
        encoded = encoder(ids[None, 4:]).last_hidden_state[0]
        tokens = AutoModelForTokenClassification.from_pretrained(folder, trust_remote_code=True)
        scores = tokens(ids[None, 4:]).logits[0]
    filled = pipeline("fill-mask", model=model, tokenizer=tokenizer)("the [MASK] reads text")
    with TemporaryDirectory() as again:
        model.save_pretrained(again)
        saved_again = sorted(path.name for path in Path(again).glob("*.py"))
    return {
        "logits": alone.tolist(),
        "saved_again": saved_again,
        "module": type(model).__module__.split(".")[0],
        "weights": _digest(model),
        "is_tied": model.decoder.weight.data_ptr() == model.model.encoder.weight.data_ptr(),
        "packed_error": float((packed[4:] - alone).abs().max()),
        "encoder_error": float((model.decoder(encoded) - alone).detach().abs().max()),
        "tokens_error": float((tokens.classifier(encoded) - scores).detach().abs().max()),
        "filled": [guess["token_str"] for guess in filled],
        "kernel_for_short_rows": kernel_for_short_rows(encoder),
        "imported": [name for name in sys.modules if name.split(".")[0] == "neobert"],
    }


if __name__ == "__main__":
    main(sys.argv[1:])
