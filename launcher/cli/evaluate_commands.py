"""Declarations of the commands that evaluate a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli import config_options, options, use_options
from launcher.cli.groups import PROGRAM, app, exit_with, make_group

if TYPE_CHECKING:
    from neobert.evaluation.embedding_model import EmbeddingModel

evaluate_app = make_group(
    "evaluate",
    "Evaluate: glue, blimp, perplexity, pseudo-perplexity, passkey, generation, similarity, retrieval, mteb.",
)
app.add_typer(evaluate_app, rich_help_panel="Use")


@evaluate_app.command(
    "glue",
    epilog=f"Example: {PROGRAM} evaluate glue runs/demo glue --tasks cola,rte --seeds 3 -o glue-demo",
)
def _evaluate_glue(
    folder: use_options.ModelFolder,
    data: use_options.GlueData,
    output: use_options.GlueFolder,
    tasks: use_options.GlueTasks = None,
    seeds: use_options.Seeds = 3,
    transfer: use_options.Transfer = False,
    random_weights: use_options.RandomWeights = False,
    keep_checkpoints: use_options.KeepCheckpoints = False,
    device: use_options.Device = None,
    overrides: options.Overrides = None,
    output_format: options.Format = "text",
) -> None:
    """Fine-tune on the tasks of GLUE and SuperGLUE and report scores.

    Every task and seed is a run with preflight checks and early stopping, scored by its best evaluation.
    Finished runs are not repeated: the same command continues a stopped evaluation.
    """
    from launcher.commands import evaluate_glue
    from launcher.commands.glue_points import GlueRequest
    from neobert.evaluation.glue.tasks import expand_task_names

    request = GlueRequest(
        folder=folder,
        data=data,
        output=output,
        tasks=expand_task_names(tasks or evaluate_glue.DEFAULT_TASKS),
        seeds=seeds,
        device=device,
        transfers=transfer,
        random_weights=random_weights,
        keeps_checkpoints=keep_checkpoints,
        overrides=tuple(overrides or ()),
    )
    exit_with(evaluate_glue.run(request, output_format))


@evaluate_app.command("blimp", epilog=f"Example: {PROGRAM} evaluate blimp runs/demo blimp.jsonl.gz")
def _evaluate_blimp(
    folder: use_options.ModelFolder,
    data: use_options.BlimpData,
    output: use_options.EvaluationFolder = None,
    pairs_per_paradigm: use_options.PairsPerParadigm = None,
    dtype: use_options.InferenceType = None,
    device: use_options.Device = None,
    output_format: options.Format = "text",
) -> None:
    """Score the minimal pairs of BLiMP.

    A causal model predicts each token from the previous tokens; a masked-word model predicts each token while
    that token alone is masked. A pair is right if the good sentence is more likely.
    """
    from launcher.commands import evaluation

    model = evaluation.EvaluatedModel(folder, dtype, device)
    exit_with(evaluation.run_blimp(model, data, pairs_per_paradigm, output, output_format))


@evaluate_app.command(
    "perplexity",
    epilog=f"Example: {PROGRAM} evaluate perplexity runs/causal-demo texts.txt",
)
@evaluate_app.command(
    "pseudo-perplexity",
    epilog=f"Example: {PROGRAM} evaluate pseudo-perplexity runs/demo texts.txt",
)
def _evaluate_pseudo_perplexity(
    folder: use_options.ModelFolder,
    texts: use_options.TextsPath,
    output: use_options.EvaluationFolder = None,
    column: use_options.Column = None,
    split: use_options.Split = "train",
    max_length: use_options.MaxLength = None,
    dtype: use_options.InferenceType = None,
    device: use_options.Device = None,
    output_format: options.Format = "text",
) -> None:
    """Measure the perplexity of texts.

    A causal model predicts each token from the previous tokens, in windows of --max-length tokens (2,048)
    that overlap by half. A masked-word model has a pseudo-perplexity: it predicts each token while that token
    alone is masked, so that a text of n tokens takes n forward passes.
    """
    from launcher.commands import evaluation

    model = evaluation.EvaluatedModel(folder, dtype, device)
    source = {"data": texts, "column": column, "split": split}
    exit_with(evaluation.run_perplexity(model, max_length, source, output, output_format))


@evaluate_app.command("passkey", epilog=f"Example: {PROGRAM} evaluate passkey runs/demo --lengths 1k,4k")
def _evaluate_passkey(
    folder: use_options.ModelFolder,
    output: use_options.EvaluationFolder = None,
    lengths: use_options.PasskeyLengths = "1k",
    trials: use_options.PasskeyTrials = 20,
    seed: use_options.PasskeySeed = 0,
    at_least: use_options.PasskeyLeast = None,
    dtype: use_options.InferenceType = None,
    device: use_options.Device = None,
    output_format: options.Format = "text",
) -> None:
    """Test recall of key words from long documents.

    The words are stated early in filler text and requested at its end. Reports the share of words that are
    predicted at masks, or by a causal model after the words before them, by length and depth. The same seed
    gives the same documents.
    """
    from launcher.commands import evaluation

    model = evaluation.EvaluatedModel(folder, dtype, device)
    test = {"lengths": evaluation.parse_lengths(lengths), "trials": trials, "seed": seed}
    exit_with(evaluation.run_passkey(model, test, at_least, output, output_format))


@evaluate_app.command(
    "generation",
    epilog=f"Example: {PROGRAM} evaluate generation runs/demo prompts.txt",
)
def _evaluate_generation(
    folder: use_options.ModelFolder,
    prompts: use_options.Prompts,
    output: use_options.EvaluationFolder = None,
    max_tokens: use_options.MaxTokens = 256,
    dtype: use_options.InferenceType = None,
    device: use_options.Device = None,
    output_format: options.Format = "text",
) -> None:
    """Continue prompts with a causal model.

    Each token is the most likely one, so the same weights give the same text. Prompts are lines of a .txt
    file, or of a .jsonl file with prompt or messages.
    """
    from launcher.commands import evaluation

    model = evaluation.EvaluatedModel(folder, dtype, device)
    exit_with(evaluation.run_generation(model, prompts, max_tokens, output, output_format))


def _embedding_model(
    folder: use_options.ModelFolder,
    pooling: use_options.Pooling = None,
    query_prefix: use_options.QueryPrefix = None,
    document_prefix: use_options.DocumentPrefix = None,
    max_length: use_options.MaxLength = None,
    dtype: use_options.InferenceType = None,
    device: use_options.Device = None,
) -> EmbeddingModel:
    from neobert.evaluation.embedding_model import EmbeddingModel

    return EmbeddingModel(
        folder=str(folder.absolute()),
        pooling=pooling,
        max_length=max_length,
        dtype=dtype,
        device=device,
        query_prefix=query_prefix,
        document_prefix=document_prefix,
    )


@evaluate_app.command("similarity", epilog=f"Example: {PROGRAM} evaluate similarity runs/demo sts-test.tsv")
@options.with_options_from(_embedding_model)
def _evaluate_similarity(
    model: EmbeddingModel,
    data: use_options.ScoredPairs,
    output: use_options.EvaluationFolder = None,
    query_column: config_options.QueryColumn = None,
    positive_column: config_options.PositiveColumn = None,
    score_column: use_options.ScoreColumn = None,
    output_format: options.Format = "text",
) -> None:
    """Correlate the similarities of pairs of texts with their scores.

    Each row of the table has two texts and a score, as in STS-B.
    """
    from launcher.commands import evaluation

    names = {"text": query_column, "positive": positive_column, "scores": score_column}
    exit_with(evaluation.run_similarity(model, data, names, output, output_format))


@evaluate_app.command("retrieval", epilog=f"Example: {PROGRAM} evaluate retrieval runs/demo cranfield")
@options.with_options_from(_embedding_model)
def _evaluate_retrieval(
    model: EmbeddingModel,
    data: use_options.BeirData,
    output: use_options.EvaluationFolder = None,
    output_format: options.Format = "text",
) -> None:
    """Rank the documents of a BEIR folder for its queries.

    Search is exact, by cosine. The embeddings of the corpus are saved while they are computed.
    """
    from launcher.commands import evaluation

    exit_with(evaluation.run_retrieval(model, data, output, output_format))


@evaluate_app.command(
    "mteb", epilog=f"Example: {PROGRAM} evaluate mteb runs/demo --tasks STSBenchmark,NFCorpus -o mteb-demo"
)
@options.with_options_from(_embedding_model)
def _evaluate_mteb(
    model: EmbeddingModel,
    output: use_options.EvaluationFolder = None,
    benchmark: use_options.Benchmark = None,
    tasks: use_options.MtebTasks = None,
    output_format: options.Format = "text",
) -> None:
    """Run tasks or a benchmark of the mteb package.

    The time for encoding is estimated before the first task from a measured rate. Tasks with a result are
    not repeated. Needs the extra mteb, and an internet connection for data that is not cached.
    """
    from launcher.commands import evaluation

    names = tuple(filter(None, (tasks or "").split(",")))
    exit_with(evaluation.run_mteb(model, benchmark, names, output, output_format))
