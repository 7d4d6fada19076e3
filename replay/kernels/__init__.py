"""Kernels of the replay over Arrow batches: no Spark, no files.

A kernel takes slices of the log in the order of offsets and carries its state from one to the next,
so its memory is that of the cluster, not of the history. Tasks of every pool run the same kernels
(:mod:`replay.engine`): each rule is written here, once.
"""
