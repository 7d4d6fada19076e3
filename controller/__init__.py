"""The active controller: it decides requests by an image, and answers with records and replies."""
