"""
What `before.py` calls of Horovod, over Gloo. Horovod itself is no dependency of the tests: it is built for
one release of torch at a time, from its source.
"""
