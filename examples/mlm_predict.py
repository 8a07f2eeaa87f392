"""Fill the masks of texts: `python examples/mlm_predict.py FOLDER "Return a [MASK] of the object."`.

FOLDER is a checkpoint or an exported folder. Needs torch and transformers, not this project.
"""

import argparse

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer


def main() -> None:
    """Print the likeliest tokens of every mask, with their probabilities."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="text with one or more [MASK]")
    parser.add_argument("--top", type=int, default=5, help="tokens to print for each mask")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.folder, trust_remote_code=True)
    model = AutoModelForMaskedLM.from_pretrained(arguments.folder, trust_remote_code=True).eval()
    batch = tokenizer(arguments.texts, padding=True, truncation=True, return_tensors="pt")
    for text, ids in zip(arguments.texts, batch["input_ids"].tolist(), strict=True):
        if tokenizer.mask_token_id not in ids:
            limit = tokenizer.model_max_length
            parser.error(f"no {tokenizer.mask_token} in the first {limit:,} tokens of {text[:40]!r}")
    with torch.inference_mode():
        probabilities = model(**batch).logits.float().softmax(-1)
    for row, column in (batch["input_ids"] == tokenizer.mask_token_id).nonzero().tolist():
        shares, ids = probabilities[row, column].topk(arguments.top)
        guesses = zip(tokenizer.convert_ids_to_tokens(ids.tolist()), shares.tolist(), strict=True)
        print(f"{arguments.texts[row]!r}, token {column}: ", end="")
        print(", ".join(f"{token} {share:.1%}" for token, share in guesses))


if __name__ == "__main__":
    main()
