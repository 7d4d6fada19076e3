"""Configs of runs, drawn from their seeds: the cluster, its clients and its faults."""
