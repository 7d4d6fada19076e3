"""Decides: requests and an image in, records and a reply out."""
