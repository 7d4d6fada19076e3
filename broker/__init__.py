"""The broker: follows the log, serves reads from the image at LAO and at the tip, and forwards
writes.
"""
