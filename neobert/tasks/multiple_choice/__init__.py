"""Multiple choice: the best of several endings, answers or options of a prompt (SWAG, HellaSwag, ARC)."""
