"""fp32, or TF32 where `trainer.tf32` allows it."""

from neobert.precision.recipe import Recipe

FP32 = Recipe(dtype="float32", activation_bytes=4, weight_copy_bytes=0, min_capability=(0, 0))
