"""Agreement of the replay of an exported log with the cluster that wrote it: simulated runs are
exported and asked with Spark.

``witness`` notes what state the nodes really had, ``runs`` runs and exports, ``replayed`` asks;
the commands are in ``command``. Only ``replayed`` and what uses it need the extra ``replay``.
"""
