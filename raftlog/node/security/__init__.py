"""Authenticate and authorize peers, and audit their requests."""
