"""State of the active controller beside the image: soft state that ends with its epoch, for
decisions.
"""
