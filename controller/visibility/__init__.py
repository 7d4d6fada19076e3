"""LAO and what it rests on: who has applied what, who may be reading, and when the log says so."""
