"""The engine of all jobs: plan, tasks in a pool, reading, fold, and merge of the results."""
