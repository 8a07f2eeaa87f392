"""`python -m neobert.evaluation.generation REQUEST.json`: prints the continuation of each prompt as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from neobert.evaluation.generation.prompts import Prompt, read_prompts
from neobert.generation.folder import causal_folder, chat_folder
from neobert.generation.model import Generator, load_generator
from neobert.generation.request import Sampling
from neobert.json_program import serve
from neobert.progress import Progress
from neobert.runfiles.checkpoint.model_files import weights_digest


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    """Continue every prompt with its most likely tokens, one prompt at a time, and return the report.

    Raises `ProjectError` for an unusable model, and for an invalid or too long prompt.
    """
    prompts = read_prompts(Path(request["prompts"]))
    has_conversations = any(prompt.messages for prompt in prompts)
    folder = (chat_folder if has_conversations else causal_folder)(Path(request["folder"]))
    generator = load_generator(folder, request["device"], request["dtype"])
    sampling = Sampling(temperature=0.0, max_tokens=request["max_tokens"])
    progress, samples = Progress("generating", "prompts", len(prompts)), []
    for prompt in prompts:
        samples.append(continue_prompt(generator, prompt, sampling))
        progress.advance()
    ended = [sample["reason"] == "stop" for sample in samples]
    return {
        "kind": "generation",
        "schema_version": 1,
        "weights": weights_digest(folder),
        "summary": {
            "prompts": len(samples),
            "mean_tokens": sum(sample["tokens"] for sample in samples) / len(samples),
            "share_stopped": sum(ended) / len(ended),
        },
        "max_tokens": request["max_tokens"],
        "samples": samples,
    }


def continue_prompt(generator: Generator, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
    """Return a prompt with its continuation, the number of generated tokens, and why generation ended."""
    pieces: list[str] = []
    ids = generator.chat_prompt(prompt.messages) if prompt.messages else generator.text_prompt(prompt.text)
    ending = generator.generate(ids, sampling, pieces.append)
    source = {"messages": prompt.messages} if prompt.messages else {"prompt": prompt.text}
    return {**source, "continuation": "".join(pieces), "tokens": ending.tokens, "reason": ending.reason}


if __name__ == "__main__":
    sys.exit(serve(evaluate, sys.argv[1:]))
