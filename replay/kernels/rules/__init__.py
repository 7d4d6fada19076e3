"""The rules of the audit, as kernels. Their list: :mod:`replay.rules`; their meaning:
docs/audit.md.
"""
