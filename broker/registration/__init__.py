"""How a broker gets its id, registers, and keeps its session."""
