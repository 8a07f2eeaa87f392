"""LoRA adapters: low-rank weights that are trained on top of a frozen encoder."""
