"""The broker: follows the log, serves reads from the images at LAO and at the tip, forwards
writes.
"""
