"""LAO, its inputs, and the progress records."""
