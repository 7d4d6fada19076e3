"""What the site has from the code: pages of the reference, and sections of written pages."""
