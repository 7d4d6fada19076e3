"""Record types, and the image that records fold into."""
