"""Text to microbatches.

- `sources`: files and datasets, read as rows; reads that may fail are retried.
- `tokenize`: tokenizers, and documents encoded as segments.
- `store`: segments on disk, prepared once and memory-mapped.
- `batches`: order, packing, masking, tensors, prefetching.

Errors: DAT001 missing or unreadable; DAT002 prepared for something else; DAT004 too little text; DAT006
evaluation overlaps training; DAT009 cache folder; DAT010 reading stopped during training; DAT011 column;
DAT012 document longer than the context; TOK001 tokenizer missing or unreadable; TOK002 special tokens;
TOK003 not fast; TOK004 untrainable.
"""
