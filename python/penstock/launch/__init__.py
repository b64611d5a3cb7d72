"""Launchers: how the processes of a job come to be, and how they end."""
