"""Rules over an image, without a controller: the effect of a change of one broker or partition on
the others.

The controller decides by them, and so does the replay's generator of histories.
"""
