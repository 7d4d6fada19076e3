"""What runs nodes on machines, as files and figures: units of systemd, sizes."""
