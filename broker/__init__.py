"""The broker: follows the log, serves reads of images at LAO and at the tip, forwards writes."""
