"""How far brokers lag behind the log, and which brokers held LAO back."""
