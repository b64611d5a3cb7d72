"""
Benchmarks between hosts: test hosts in network namespaces, or the loopback.

| file | what |
|---|---|
| `places` | where workers and servers run: topologies over test hosts, or this host |
| `ideal` | the least time that the links allow |
| `layers` | the parameters of known networks |
| `exchange` | what one rank of any system does |
| `systems` | Penstock, Gloo and Open MPI over TCP |
| `tenants` | several jobs on one server |
| `streams` | what iperf3 moves |
| `report` | tables and JSON; `plot` the pictures |
"""
