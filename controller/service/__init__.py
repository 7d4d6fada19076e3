"""The shell of a controller: requests in, decisions proposed, replies out when they are true."""
