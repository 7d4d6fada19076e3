"""The effects of one broker's or partition's change on the others, as functions of an image.

The controller's decisions and the replay's history generator use them.
"""
