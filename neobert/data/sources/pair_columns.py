"""Usual names of the columns of pairs, such as those of data for sentence-transformers."""

QUERIES = ("query", "anchor", "question", "sentence1", "question1", "text1", "sent0", "premise", "text")
POSITIVES = (
    "positive", "pos", "document", "corpus", "passage", "answer", "sentence2", "question2", "text2", "sent1",
    "hypothesis",
)  # fmt: skip
LABELS = ("label", "labels")
SCORES = ("score", "scores", "similarity", "similarity_score", "relatedness_score", *LABELS)
