"""What a run minimises: modules from a microbatch to a summed loss."""

from neobert.objectives.masked_lm import MaskedLMObjective, check_labels

__all__ = ["MaskedLMObjective", "check_labels"]
