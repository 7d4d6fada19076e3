"""Kernels of the replay: code over Arrow batches, without Spark or files.

A kernel processes slices of the log in offset order and carries its state from one to the next, so
its memory depends on the cluster's size, not on the history. Tasks of every pool run the same
kernels (:mod:`replay.engine`), so each rule is implemented once.
"""
