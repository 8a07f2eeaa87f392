"""Model families: one folder each, with a light half (`spec.py`, no torch) and a heavy half (`build.py`)."""
