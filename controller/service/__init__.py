"""The shell of a controller: it receives requests, proposes decisions, and sends each reply once
its content is certain.
"""
