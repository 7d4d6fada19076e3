"""Record types, and the image into which records are folded."""
