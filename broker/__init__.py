"""The broker: it follows the log, serves reads of images at LAO and at the tip, and forwards
writes.
"""
