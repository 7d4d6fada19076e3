"""Authentication of peers, and their permissions."""
