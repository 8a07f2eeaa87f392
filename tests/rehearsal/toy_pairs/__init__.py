"""A task of pairs: the halves of a document, told from those of the other documents of a microbatch."""
