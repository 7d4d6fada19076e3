"""The active controller: decides the records and replies for a request, given an image."""
