"""The audit: rules over the whole history, each a function of tables to findings.

See docs/audit.md for what each rule means.
"""
