"""The parts of the site that are generated from code: pages of the reference, and sections of
written pages.
"""
