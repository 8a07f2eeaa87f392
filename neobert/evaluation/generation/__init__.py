"""Evaluation `generation`: greedy continuations of prompts, for reading and for other judges."""
