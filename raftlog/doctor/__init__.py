"""What is wrong with a cluster, from what its nodes say: rules without I/O."""
