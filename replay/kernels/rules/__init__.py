"""The rules of the audit, as kernels. Their list: :mod:`replay.audit.rules`; their meaning:
docs/audit.md.
"""
