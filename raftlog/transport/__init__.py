"""The network: links of messages over gRPC streams."""
