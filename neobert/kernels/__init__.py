"""Kernels of the packed pretraining step, as custom operators that cause no graph break in torch.compile.

Importing this package needs neither triton nor a GPU: operators import their Triton programs on first use.

    attention     rotary attention within packed segments (Triton), and the tables that all layers share
    flash4        FlashAttention 4 for long segments, in the layout of `attention`
    pointwise     residual addition with RMSNorm; SwiGLU (Triton)
    fused_block   encoder block whose elementwise operations run in the epilogues of its matrix products
    products      the matrix products of `fused_block`, and their folded copies of the weights
    epilogues     the epilogues of these matrix products (quack-kernels)
    vocabulary    embedding lookup; decoder and cross-entropy on labelled rows, without storing all logits
    reference     plain PyTorch formulas with which the kernels are compared
"""
