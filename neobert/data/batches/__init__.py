"""Microbatches: order, packing, masking, prefetching."""
