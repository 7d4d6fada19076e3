"""The engine of all jobs: planning, tasks in a pool, reading, the fold, and merging of results."""
