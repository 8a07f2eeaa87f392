"""Declarations of the commands that use a checkpoint: encode, search, predict, export."""

from __future__ import annotations

from launcher.cli import options, use_options
from launcher.cli.groups import PROGRAM, app, exit_with


@app.command(
    "encode",
    rich_help_panel="Use",
    epilog=f"Example: {PROGRAM} encode runs/demo texts.txt --output embeddings.npy",
)
def _encode(
    folder: use_options.ModelFolder,
    texts: use_options.Texts,
    output: use_options.EmbeddingsFile = None,
    index: use_options.IndexFolder = None,
    column: use_options.Column = None,
    split: use_options.Split = "train",
    prompt: use_options.Prompt = None,
    prompt_text: use_options.PromptText = None,
    pooling: use_options.Pooling = None,
    normalize: use_options.Normalize = None,
    max_length: use_options.MaxLength = None,
    dtype: use_options.InferenceType = None,
    device: use_options.Device = None,
    processes: use_options.Processes = None,
    texts_per_shard: use_options.TextsPerShard = 32_768,
    output_format: options.Format = "text",
) -> None:
    """Encode texts to embeddings.

    Texts are packed without padding and encoded with the kernels of training. The same command continues a
    stopped job.
    """
    from launcher.commands import text_jobs
    from neobert.encoding.request import EMBEDDINGS, Request

    options.require_at_most_one(output=output, index=index)
    options.require_at_most_one(prompt=prompt, prompt_text=prompt_text)
    file = output if index is None else index / EMBEDDINGS
    request = Request(
        folder=str(folder),
        texts=texts,
        output="" if file is None else str(file),
        is_index=index is not None,
        column=column,
        split=split,
        prompt=prompt,
        prompt_text=prompt_text,
        pooling=pooling,
        normalize=normalize,
        max_length=max_length,
        dtype=dtype,
        device=device,
        processes=processes,
        texts_per_shard=texts_per_shard,
    )
    exit_with(text_jobs.run(request, output_format))


@app.command(
    "search",
    rich_help_panel="Use",
    epilog=f'Example: {PROGRAM} search notes "how do I resume a run" --top 3',
)
def _search(
    index: use_options.SearchedIndex,
    query: use_options.Query,
    top: use_options.Top = 10,
    model: use_options.IndexModel = None,
    prompt: use_options.Prompt = None,
    prompt_text: use_options.PromptText = None,
    dtype: use_options.InferenceType = None,
    device: use_options.Device = None,
    output_format: options.Format = "text",
) -> None:
    """Search the texts of an index.

    The query is encoded by the model of the index and compared with every text by cosine similarity. Fails
    for another model, or if the texts were edited since.
    """
    from launcher.commands import text_jobs

    options.require_at_most_one(prompt=prompt, prompt_text=prompt_text)
    settings = {"top": top, "prompt": prompt, "prompt_text": prompt_text, "dtype": dtype, "device": device}
    exit_with(text_jobs.search(index, query, model, settings, output_format))


@app.command(
    "predict",
    rich_help_panel="Use",
    epilog=f"Example: {PROGRAM} predict runs/reviews new.csv --output predicted.csv",
)
def _predict(
    folder: use_options.ModelFolder,
    texts: use_options.Rows,
    output: use_options.PredictionsFile = None,
    column: use_options.TrainedColumn = None,
    pair_column: use_options.PairColumn = None,
    max_length: use_options.MaxLength = None,
    every_class: use_options.EveryClass = False,
    dtype: use_options.InferenceType = None,
    device: use_options.Device = None,
    processes: use_options.Processes = None,
    rows_per_shard: use_options.TextsPerShard = 32_768,
    output_format: options.Format = "text",
) -> None:
    """Predict labels, scores, words' labels, answers, choices or masked words.

    The output has the columns of the input and the predicted columns. The same command continues a stopped
    job.
    """
    from launcher.commands import text_jobs
    from neobert.prediction.request import Request

    request = Request(
        folder=str(folder),
        texts=texts,
        output="" if output is None else str(output),
        column=column,
        pair_column=pair_column,
        max_length=max_length,
        every_class=every_class,
        dtype=dtype,
        device=device,
        processes=processes,
        rows_per_shard=rows_per_shard,
    )
    exit_with(text_jobs.run(request, output_format))


@app.command(
    "export",
    rich_help_panel="Use",
    epilog=f"Example: {PROGRAM} export runs/demo --to hf,sentence-transformers --output exported",
)
def _export(
    source: use_options.ExportSource,
    output: use_options.ExportOutput,
    to: use_options.ExportFormats = "hf",
    average: use_options.Average = "",
    pooling: use_options.Pooling = None,
    dtype: use_options.ExportDtype = "fp32",
    results: use_options.ExportResults = None,
    output_format: options.Format = "text",
) -> None:
    """Convert a checkpoint to the formats of other libraries.

    Each folder is read back by its library in a separate process and compared with the model; one that
    differs by more than 1e-5 is removed. conversion.json in each folder records the differences.
    """
    from launcher.commands import export

    formats = tuple(dict.fromkeys(name for name in to.split(",") if name))
    arguments = export.ExportArguments(
        source=source,
        formats=formats,
        output=output,
        average=average,
        pooling=pooling,
        results=tuple(results or ()),
        dtype=dtype,
    )
    exit_with(export.run(arguments, output_format))
