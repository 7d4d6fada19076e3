"""A replicated log of metadata records, and the shape of what is in it.

Knows no controller and no broker.
"""
