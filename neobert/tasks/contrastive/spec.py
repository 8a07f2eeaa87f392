"""Specification of contrastive training: rows, pooling and prompts. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import RowFormat
from neobert.errors import ProjectError
from neobert.families.hf.architecture import BARE, MASKED
from neobert.families.shape import ModelShape
from neobert.hub_names import local_weights_path
from neobert.printable import printable
from neobert.tasks.contrastive.rows import NEGATIVE_SETTING, row_format, scored_row_format
from neobert.tasks.contrastive.score_cells import SCORE_SETTING
from neobert.tasks.contrastive.section import CONTRASTIVE, MASKED_LM_LOSS, OF_RANKS
from neobert.tasks.metric import CORRELATIONS, Metric
from neobert.tasks.spec import MASKING_KEYS, NO_LOGITS, Contradiction, Head, Passes, PlanRow, TaskSpec

POOLING = "contrastive.pooling"
MAX_SETTING, WEIGHT_SETTING = "contrastive.max_negatives", "contrastive.masked_lm_weight"


def max_texts_per_example(config: RunConfig) -> int:
    """Return the maximum number of texts in an example: 2, and one per hard negative, which dropout lacks."""
    if CONTRASTIVE.read_section(config).positives == "dropout":
        return 2
    return 2 + CONTRASTIVE.read_section(config).max_negatives


def evaluation_table(config: RunConfig) -> tuple[str, RowFormat] | None:
    """Return path and row format of the table of scored pairs, or None if scored_eval_path is not set."""
    path = CONTRASTIVE.read_section(config).scored_eval_path
    return None if path is None else (path, scored_row_format(config))


def no_head(_config: RunConfig, shape: ModelShape) -> Head:
    """Return a head without parameters: vectors are pooled hidden states."""
    return Head(0, 0, shape.hidden_size, 1.0, is_per_document=True)


def masked_lm_head(config: RunConfig, shape: ModelShape) -> Head:
    """Return the size of the head over the vocabulary, which runs on masked tokens only."""
    share = config.datacollator.mlm_probability
    return Head(shape.parameters.decoder, shape.decoder_products, shape.vocab_size, share)


def by_config(config: RunConfig) -> Mapping[str, Any]:
    """Return the fields of `TaskSpec` that a masked-LM loss changes, or an empty mapping if none is added."""
    if not CONTRASTIVE.read_section(config).masked_lm_weight:
        return {}
    return {
        "auto_class": MASKED,
        "head": masked_lm_head,
        "mix_key": WEIGHT_SETTING,
        "roles": ("mask_token",),
        "also_reads": (*MASKING_KEYS, *NO_LOGITS),
    }


def passes(config: RunConfig) -> Passes:
    """Return the passes of a step: a masked-LM loss adds one, several microbatches repeat one (GradCache)."""
    is_cached = config.trainer.gradient_accumulation_steps > 1
    return Passes(2 if CONTRASTIVE.read_section(config).masked_lm_weight else 1, int(is_cached))


def model_settings(config: RunConfig) -> Mapping[str, Any]:
    """Return the pooling, for a NeoBERT's config.json."""
    return {"pooling": CONTRASTIVE.read_section(config).pooling}


def source_weight(config: RunConfig, weight: float, pairs: int) -> float:
    """Return the weight of a corpus in a mixture: its own weight times pairs ** contrastive.alpha."""
    return float(weight * pairs ** CONTRASTIVE.read_section(config).alpha)


def reports(config: RunConfig, metric: Metric) -> bool:
    """Return whether evaluations report a metric: masked-LM loss, correlations, or ranks of answers."""
    section = CONTRASTIVE.read_section(config)
    has_pairs = section.score_column is not None and (
        section.max_negatives == 0 or bool(config.dataset.mixture)
    )
    if metric == MASKED_LM_LOSS:
        return section.masked_lm_weight > 0
    if metric in CORRELATIONS:
        return has_pairs or section.scored_eval_path is not None
    return metric not in OF_RANKS or not has_pairs or bool(config.dataset.mixture)


def has_one_loss(config: RunConfig) -> bool:
    """Return whether every step has the same loss function; a mixture with a score column has several."""
    return CONTRASTIVE.read_section(config).score_column is None or not config.dataset.mixture


def contradictions(config: RunConfig) -> Iterator[Contradiction]:
    """Yield contradictions: unread columns, too wide matryoshka_dims, no dropout, warm-up with a mixture."""
    section, trainer = CONTRASTIVE.read_section(config), config.trainer
    columns = section.negative_columns or ()
    if len(columns) > section.max_negatives:
        problem = f"negative_columns has {len(columns)} columns, but max_negatives is {section.max_negatives}"
        yield Contradiction(NEGATIVE_SETTING, problem, f"set {MAX_SETTING} to {len(columns)} or more")
    if section.positives == "dropout":
        yield from _dropout_contradictions(config)
    widths, width = section.matryoshka_dims, getattr(config.model, "hidden_size", None)
    if widths and width is not None and max(widths) >= width:
        problem = f"matryoshka_dims has {max(widths):,}, but a vector has {width:,} components"
        hint = f"set contrastive.matryoshka_dims to numbers below {width}"
        yield Contradiction("contrastive.matryoshka_dims", problem, hint)
    if config.dataset.mixture and trainer.batch_size_warmup_steps:
        problem = (
            f"batch_size_warmup_steps is {trainer.batch_size_warmup_steps}, but each step has one source"
        )
        hint = "set trainer.batch_size_warmup_steps to 0, or join the sources in dataset.path"
        yield Contradiction("trainer.batch_size_warmup_steps", problem, hint)


def _dropout_contradictions(config: RunConfig) -> Iterator[Contradiction]:
    from neobert.families.table import model_family  # which reads the tasks

    section, family = CONTRASTIVE.read_section(config), model_family(config)
    if not family.dropout(config.model):
        problem = "positives is dropout, but the model has no dropout: both vectors of a text would be equal"
        yield Contradiction(
            "contrastive.positives", problem, f"set {family.dropout_key(config.model)} to 0.1"
        )
    for name in ("positive_column", "negative_columns", "score_column"):
        if getattr(section, name) is not None:
            problem = f"{name} is not read, because positives is dropout"
            hint = f"remove contrastive.{name}, or set contrastive.positives to column"
            yield Contradiction(f"contrastive.{name}", problem, hint)


def plan_rows(config: RunConfig) -> Iterator[PlanRow]:
    """Yield the plan's rows on pooling (and another that the weights declare), prompts and masked-LM loss."""
    section = CONTRASTIVE.read_section(config)
    yield PlanRow("pooling", f"{section.pooling}{_other_pooling(config)}", POOLING)
    prompts = {"query": section.query_prompt, "document": section.document_prompt}
    shown = ", ".join(f"{name} {repr(text) if text else 'none'}" for name, text in prompts.items())
    yield PlanRow("prompts", shown, "contrastive.query_prompt, contrastive.document_prompt")
    if weight := section.masked_lm_weight:
        share = config.datacollator.mlm_probability
        shown = f"{weight:g} x the masked-LM loss, on {share:.0%} of the tokens"
        yield PlanRow("mixed in", shown, "contrastive.masked_lm_weight")


def _other_pooling(config: RunConfig) -> str:
    """Return a note on another pooling in the weights; '' if there is none or the folder is unreadable."""
    from neobert.runfiles.model_folder import folder_of_weights  # `lint` reads no checkpoint

    if (weights := local_weights_path(config.model)) is not None:
        # `preflight` reports the errors of the folder.
        with suppress(ProjectError):
            found = differing_keys(config, folder_of_weights(Path(weights)))
            return "".join(f" (the weights declare {printable(value)})" for value in found.values())
    return ""


def declared_keys(folder: Path) -> Mapping[str, Any]:
    """Return pooling and prompts of a sentence-transformers folder, by config key; empty for other weights.

    Raises `ProjectError` for a folder with further modules, which the run would lose.
    """
    from neobert.encoding.declared import read_declared_settings  # `lint` reads no checkpoint

    if not (folder / "modules.json").is_file():
        return {}
    found = read_declared_settings(folder)
    prompts = {"query": found.prompts.query_prompt, "document": found.prompts.document_prompt}
    return {POOLING: found.pooling} | {
        f"contrastive.{name}_prompt": text for name, text in prompts.items() if text
    }


def differing_keys(config: RunConfig, folder: Path) -> Mapping[str, str]:
    """Return the pooling that a folder declares, "none" if it declares none, by config key.

    Empty if the run uses that pooling. Raises `ProjectError` if the folder's declarations are unreadable.
    """
    from neobert.encoding.declared import read_declared_settings  # `lint` reads no checkpoint

    found = read_declared_settings(folder).pooling
    return {} if found == CONTRASTIVE.read_section(config).pooling else {POOLING: found or "none"}


SPEC = TaskSpec(
    keys=CONTRASTIVE,
    summary="embeddings of texts, trained on pairs",
    auto_class=BARE,
    predicts="pairs",
    head=no_head,
    by_config=by_config,
    passes=passes,
    model_settings=model_settings,
    rows=row_format,
    texts=max_texts_per_example,
    corpus_weight=source_weight,
    declared_keys=declared_keys,
    differing_keys=differing_keys,
    temperature=lambda config: CONTRASTIVE.read_section(config).temperature,
    score_key=lambda config: SCORE_SETTING if CONTRASTIVE.read_section(config).score_column else "",
    contradictions=contradictions,
    plan_rows=plan_rows,
    has_one_loss=has_one_loss,
    reports=reports,
    evaluation_table=evaluation_table,
)
