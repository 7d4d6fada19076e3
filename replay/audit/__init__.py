"""The audit in Spark: the kernels of :mod:`replay.kernels` over a whole history, or over a piece.

See docs/audit.md for what each rule means.
"""
