"""Declarations of the commands that run a causal model for conversations: chat, serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from launcher.cli import use_options
from launcher.cli.groups import PROGRAM, app, exit_with

Source = Annotated[
    str,
    Argument(
        metavar="FOLDER|URL",
        help="Exported folder, checkpoint, run directory, or URL of a server with OpenAI's interface.",
    ),
]
Folder = Annotated[Path, Argument(metavar="FOLDER", help="Exported folder, checkpoint, or run directory.")]
System = Annotated[str, Option("--system", metavar="TEXT", help="System prompt. Default: none.")]
Temperature = Annotated[
    float,
    Option("--temperature", metavar="T", min=0, help="Sampling temperature; 0 takes the most likely token."),
]
TopP = Annotated[
    float,
    Option(
        "--top-p",
        metavar="P",
        min=0.01,
        max=1,
        help="Sample only from the most likely tokens whose probabilities sum to this value.",
    ),
]
MaxTokens = Annotated[
    int, Option("--max-tokens", metavar="N", min=1, help="Maximum number of new tokens per reply.")
]
Seed = Annotated[int, Option("--seed", metavar="N", help="Random seed of the sampling.")]
Model = Annotated[
    str | None,
    Option(
        "--model", metavar="NAME", help="Model name on the server. Default: the first that the server lists."
    ),
]
ApiKeyVariable = Annotated[
    str | None,
    Option(
        "--api-key-env", metavar="NAME", help="Environment variable that contains the API key. Default: none."
    ),
]
Host = Annotated[str, Option("--host", metavar="HOST", help="Address to listen on.")]
Port = Annotated[int, Option("--port", metavar="PORT", min=1, max=65535, help="Port to listen on.")]


@app.command("chat", rich_help_panel="Use", epilog=f"Example: {PROGRAM} chat runs/sft-demo")
def _chat(
    source: Source,
    system: System = "",
    temperature: Temperature = 0.7,
    top_p: TopP = 0.95,
    max_tokens: MaxTokens = 512,
    seed: Seed = 0,
    model: Model = None,
    api_key_env: ApiKeyVariable = None,
    device: use_options.Device = None,
) -> None:
    """Chat with a causal model, or with a server.

    The conversation is kept until /clear; Ctrl-C ends a reply, /exit or Ctrl-D the chat. Standard input that
    is not a terminal is read line by line.
    """
    from launcher.commands import chat
    from neobert.generation.request import Sampling

    sampling = Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens)
    server = chat.ServerSettings(model, api_key_env)
    exit_with(chat.run(source, sampling, system=system, seed=seed, server=server, device=device))


@app.command("serve", rich_help_panel="Use", epilog=f"Example: {PROGRAM} serve runs/sft-demo --port 8000")
def _serve(
    folder: Folder, host: Host = "127.0.0.1", port: Port = 8000, device: use_options.Device = None
) -> None:
    """Serve a causal model with an OpenAI-compatible API, using the server of transformers.

    Other machines can connect only if --host is set. Prints the commands of faster servers.
    """
    from launcher.commands import serve

    exit_with(serve.run(folder, host, port, device))
