"""
The demo: a real model on real data, trained by real worker and server processes, and once more by one process
alone.
"""
