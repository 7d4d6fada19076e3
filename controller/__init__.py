"""The active controller: from an image and a request it decides records and replies."""
