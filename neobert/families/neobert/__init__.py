"""NeoBERT: pre-norm blocks with a fused qkv, rotary or learned positions (arXiv:2502.19587)."""
