"""Keys and metrics in run files of contrastive training."""

# ruff: noqa: RUF009  (key() builds fields, which is what belongs in a class body)

from dataclasses import dataclass
from typing import Annotated, Literal

from neobert.schema_fields import (
    ConfigSection,
    Fraction,
    NonEmpty,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ge,
    key,
    le,
)
from neobert.tasks.keys import TaskKeys
from neobert.tasks.metric import ACCURACY, CORRELATIONS, LOSS, Metric

MAX_NEGATIVES = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ContrastiveConfig(ConfigSection):
    """Pairs of texts, and their vectors; dataset.text_column names the query."""

    positive_column: NonEmpty | None = key(
        None,
        "Column of the document that answers the query, or of a list of such documents, one pair "
        "each; null: positive, document, corpus, answer or another usual name.",
        affects="data",
    )
    positives: Literal["column", "dropout"] = key(
        "column",
        "Document of a query. column: the text of positive_column. dropout: the query itself, "
        "encoded again with other dropout (unsupervised SimCSE, arXiv:2104.08821); needs "
        "model.dropout, and also reads plain text.",
        affects="data",
    )
    negative_columns: tuple[NonEmpty, ...] | None = key(
        None,
        "Columns of hard negatives, each a text or a list of texts; null: negative, negative_1, or another "
        "usual name, if the data has one.",
        affects="data",
    )
    max_negatives: Annotated[int, ge(0), le(MAX_NEGATIVES)] = key(
        1, "Maximum number of hard negatives per pair; further ones are not read.", affects="data"
    )
    score_column: NonEmpty | None = key(
        None,
        "Column of the similarity of a pair (loss: CoSENT), or of a list of a teacher's scores "
        "for the document and each hard negative (loss: KL divergence); null: no scores are read "
        "(loss: InfoNCE).",
        affects="data",
    )
    scored_eval_path: NonEmpty | None = key(
        None,
        "Table of pairs with scores, added to the evaluation: eval/spearman and eval/pearson.",
        is_path=True,
        by_content=True,
        affects="data",
    )
    query_prompt: NonEmpty | None = key(
        None, 'Text before each query, such as "query: "; null: none.', affects="data"
    )
    document_prompt: NonEmpty | None = key(
        None, 'Text before each document, such as "passage: "; null: none.', affects="data"
    )
    pooling: Literal["avg", "cls"] = key(
        "avg",
        "Vector of a text: mean of the token vectors, or the vector of the first token.",
        affects="model",
    )
    matryoshka_dims: tuple[PositiveInt, ...] = key(
        (),
        "Lengths, such as [64, 128]: the first components of a vector are also trained as a "
        "vector, with the same weight as the whole (Matryoshka).",
        affects="numerics",
    )
    temperature: PositiveFloat = key(
        0.05,
        "Divisor of the cosine similarities; 0.05 is the scale 20 of sentence-transformers.",
        affects="numerics",
    )
    teacher_temperature: PositiveFloat = key(
        1.0,
        "Divisor of a teacher's scores: 1 for logits of a cross-encoder, about 0.05 for cosine similarities.",
        affects="numerics",
    )
    masked_lm_weight: NonNegativeFloat = key(
        0.0,
        "Weight of a masked-LM loss on the same texts, added to reduce forgetting; 0: none. Above "
        "0, the model has the masked-LM head, and each microbatch needs another pass.",
        affects="model",
    )
    alpha: Fraction = key(
        0.5,
        "Sources of a mixture are drawn in proportion to weight x pairs^alpha, one per optimizer "
        "step: 1 repeats no source more than another, 0 draws all equally often.",
        affects="data",
    )


MASKED_LM_LOSS = Metric("eval/mlm_loss", is_higher_better=False)
OF_RANKS = (ACCURACY, Metric("eval/mrr", is_higher_better=True))

CONTRASTIVE = TaskKeys(
    name="contrastive",
    package="neobert.tasks.contrastive",
    metrics=(LOSS, *OF_RANKS, *CORRELATIONS, MASKED_LM_LOSS),
    section=ContrastiveConfig,
    about="Task contrastive: pairs of texts and their vectors.",
)
