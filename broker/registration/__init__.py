"""A broker's id, its registration and its session."""
