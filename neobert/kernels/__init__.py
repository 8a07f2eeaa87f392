"""Kernels of the packed pretraining step, each behind one operator that torch.compile traces without a break.

Importing this package needs neither triton nor a GPU: an operator's program is imported when it first runs.

    attention     rotary attention inside packed segments (Triton), with the tables that every layer reads
    flash4        FlashAttention 4 for long segments, in the layout of `attention`
    pointwise     residual addition with RMSNorm; SwiGLU (Triton)
    fused_block   an encoder block whose elementwise work happens in the epilogues of its products
    products      those matrix products, and the copies of the weights that they read
    epilogues     what happens to their results on the way out (quack-kernels)
    vocabulary    the lookup of tokens; decoder and cross-entropy on the masked rows, logits never kept
    reference     plain formulas that the kernels are compared with
"""
