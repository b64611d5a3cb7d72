"""
The available bandwidth between two hosts, by self-loading periodic streams (SLoPS; Jain and Dovrolis 2002).

A stream of datagrams at a rate above the available bandwidth makes a queue, so each datagram waits longer
than the one before; below it, none does. The rate is searched at which one becomes the other.

| file | what it knows |
|---|---|
| `trend.py` | whether a stream's delays grow |
| `search.py` | which rate to try next; the result |
| `streams.py` | how a stream of a rate looks, and what became of it says |
| `control.py` | the messages between the two ends, over TCP |
| `sockets.py` | sending and receiving one stream |
| `measure.py` | the end that asks; the order of the streams, and the pauses between them |
| `listen.py` | the end that is asked |
| `report.py` | how the result is written |
| `hosts.py` | the same between test hosts, where the truth is known; `processes.py`: what runs there |
"""
