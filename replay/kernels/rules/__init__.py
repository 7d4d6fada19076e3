"""The rules of the audit, as kernels. Which there are: :mod:`replay.audit.rules`; what each means:
docs/audit.md.
"""
