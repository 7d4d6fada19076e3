"""The whole page's table, from one command."""
