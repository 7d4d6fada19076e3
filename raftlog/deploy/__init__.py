"""Files and figures for running nodes on machines: systemd units, sizes."""
