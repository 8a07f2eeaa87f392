"""Training objectives: modules of model and loss that map a microbatch to a summed loss."""

from neobert.objectives.build import token_objective_for
from neobert.objectives.objective import Objective
from neobert.objectives.step_kernels import StepKernels, resolve_step_kernels
from neobert.objectives.tokens import TokenObjective, check_labels

__all__ = [
    "Objective",
    "StepKernels",
    "TokenObjective",
    "check_labels",
    "resolve_step_kernels",
    "token_objective_for",
]
