"""What the active controller knows besides the image: soft state that dies with its epoch.

Decisions look at it.
"""
