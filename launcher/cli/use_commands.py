"""Declarations of the commands that use a checkpoint: encode, evaluate."""

from __future__ import annotations

from launcher.cli import options
from launcher.cli.groups import PROGRAM, app, end


@app.command(
    "encode",
    rich_help_panel="Use",
    epilog=f"Example: {PROGRAM} encode runs/demo texts.txt --output embeddings.npy",
)
def _encode(
    folder: options.ModelFolder,
    texts: options.TextsPath,
    output: options.EmbeddingsFile,
    column: options.Column = None,
    split: options.Split = "train",
    pooling: options.Pooling = None,
    normalize: options.Normalize = None,
    max_length: options.MaxLength = None,
    dtype: options.InferenceType = None,
    processes: options.Processes = None,
    texts_per_shard: options.TextsPerShard = 32_768,
    output_format: options.Format = "text",
) -> None:
    """Encode texts to embeddings.

    Texts are packed without padding and encoded on the kernels that a training step would use. A job that was
    stopped continues with the same command.
    """
    from launcher.commands import encode

    request = encode.Request(
        folder=folder,
        texts=texts,
        output=output,
        column=column,
        split=split,
        pooling=pooling,
        normalize=normalize,
        max_length=max_length,
        dtype=dtype,
        processes=processes,
        texts_per_shard=texts_per_shard,
    )
    end(encode.run(request, output_format))
