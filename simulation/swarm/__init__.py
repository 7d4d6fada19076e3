"""What a run is made of, drawn from its seed: the cluster, its clients and its faults."""
