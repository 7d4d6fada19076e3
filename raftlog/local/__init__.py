"""Clusters of processes on one machine, for trial, demonstrations and tests."""
