"""What happened to a cluster in a period, told from its log and its nodes' journals: rules without
I/O.
"""
