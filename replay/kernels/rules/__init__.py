"""The audit rules as kernels. :mod:`replay.rules` lists them; docs/audit.md explains them."""
