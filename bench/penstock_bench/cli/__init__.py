"""The command lines of the benchmarks."""
