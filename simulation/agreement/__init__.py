"""Agreement of the replay of an exported log with the cluster that wrote it: ``run_and_export``
runs and exports, ``sightings`` notes the nodes' states, ``replayed`` asks Spark (extra ``replay``).
"""
