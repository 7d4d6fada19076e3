"""Voters, leadership transfers and feature levels."""
