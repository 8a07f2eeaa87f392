"""Kernels of the packed pretraining step, each behind one operator that torch.compile traces without a break.

Importing this package needs neither triton nor a GPU: an operator's program is imported when it first runs.

    tiles         the table of attention tiles and the rotary table, once per microbatch
    attention     rotary attention inside packed segments (Triton)
    embedding     the lookup of tokens, with a gradient that repeats in compiled steps
    norm, swiglu  residual addition with RMSNorm; SwiGLU (Triton)
    loss          decoder and cross-entropy on the masked rows, logits never kept
    fused_block   an encoder block whose elementwise work happens in its products' epilogues (quack-kernels)
    flash4        FlashAttention 4 for long segments, in the layout of `attention`
"""
