"""The table of the whole benchmarks page, made by one command."""
