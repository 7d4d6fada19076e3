"""The configuration of a node, from one file, the environment and flags; all mistakes are reported
at once.
"""
