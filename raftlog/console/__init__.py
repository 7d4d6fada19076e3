"""The console: one page for people, served by every node, which only looks."""
