"""torchao: linear layers of the blocks with matrix products in fp8, mxfp8 and nvfp4."""
