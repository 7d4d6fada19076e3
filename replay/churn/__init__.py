"""What changed often, and what grew."""
