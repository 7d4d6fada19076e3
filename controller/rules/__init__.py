"""What a change of one broker or one partition means for the others: rules over an image, without a
controller around them.

The controller decides by them, and the replay's generator of histories does.
"""
