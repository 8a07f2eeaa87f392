"""Plan: predicted size, memory, speed and cost of a run, each value with its reason. Imports no torch."""

from neobert.config.schedules import Schedule, build_schedule, learning_rate_at, multiplier_at
from neobert.plan.build import Plan, build_plan
from neobert.plan.derived import Derived, Measured
from neobert.plan.hardware import CARDS, Assumptions, assumptions_for, find_card
from neobert.plan.vocabulary import VOCAB_MULTIPLE, round_up

__all__ = [
    "CARDS",
    "VOCAB_MULTIPLE",
    "Assumptions",
    "Derived",
    "Measured",
    "Plan",
    "Schedule",
    "assumptions_for",
    "build_plan",
    "build_schedule",
    "find_card",
    "learning_rate_at",
    "multiplier_at",
    "round_up",
]
