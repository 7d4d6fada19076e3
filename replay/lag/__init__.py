"""How far the brokers were behind the log, and who held the LowestAcknowledgedOffset back."""
