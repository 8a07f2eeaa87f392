"""GLUE and SNLI: tasks, their files, a run for each task and seed, and the summary of their scores."""
