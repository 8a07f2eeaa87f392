"""Model families: one folder each, with a description (`spec.py`, no torch) and a builder (`build.py`)."""
