"""Classification of the words of texts: named entities, parts of speech."""
