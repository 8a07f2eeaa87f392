"""Predictions of a fine-tuned or masked-language model for the rows of a file.

`python -m neobert.prediction REQUEST.json` runs a job and prints its report.
"""
