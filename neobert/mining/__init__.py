"""Mining of hard negatives: documents that are close to a query and do not answer it."""
