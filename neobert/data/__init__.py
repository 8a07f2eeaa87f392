"""Text to microbatches, one step a module.

- Where documents come from: sources, readers, text_files, local_data, hub_data, python_docs, splits, columns;
  reads that may fail: patience, streaming.
- Documents to segments: tokenizers, wordpiece, encoding.
- Segments on disk: prepare, build, build_lock, store, report.
- Which segments go together, and what is masked: counter_hash, packing, masking, shape, windows.
- Tensors, in order: microbatch, prefetch, batches.

Errors: DAT001 missing or unreadable; DAT002 prepared for something else; DAT004 too little text; DAT006
evaluation overlaps training; DAT009 cache folder; DAT010 reading stopped while training; DAT011 column;
DAT012 document longer than the context; TOK001 tokenizer missing or unreadable; TOK002 special tokens;
TOK003 not fast; TOK004 untrainable.
"""
