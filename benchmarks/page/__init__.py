"""The table of the whole page, from one command."""
