"""Sources: files and datasets, read as documents."""
