"""
Benchmarks: our own figures beside the machine's limit and beside other systems on the same work.

How time is taken, the same for every system, is said in `ranks`; what is done in that time, in each file of
`systems`.
"""
