"""The broker: it follows the log, serves reads from the images at LAO and at the tip, and forwards
writes.
"""
