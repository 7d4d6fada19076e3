"""Clusters of processes on one machine, for trying out, demonstrations and tests."""
