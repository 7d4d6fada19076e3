"""Soft state of the active controller, in addition to the image; it ends with the epoch."""
