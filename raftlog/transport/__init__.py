"""Links of messages between processes, over gRPC streams.

Importing the package sets gRPC's switches in the environment, before any module imports grpc.
"""

from raftlog.transport import grpc_runtime as grpc_runtime
