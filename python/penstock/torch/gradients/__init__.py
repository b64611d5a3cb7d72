"""
`where="gradients"`: when backward ends, `p.grad` holds the average over the workers, as under torch's
DistributedDataParallel. Parameters, optimizer and everything done with gradients stay in the script.

| file | holds |
|---|---|
| averaging.py | one model: its buckets, hooks, and what happens at the end of a backward pass |
| backward.py | one job: when a backward pass begins and ends, whichever models it reaches |
| bucket.py | gradients of many parameters as one tensor |
| roll.py | what workers tell each other beside gradients: who took part, which parameters were used |
| buffers.py | batch statistics and other buffers, which travel with the gradients |
| patience.py | how long a pass waits for the other workers |
| script.py | what the script's own optimizer must know |

What a pass costs a worker on one host, for B bytes of gradients: B read and B written when they leave, B read
and written when the average comes; the servers read B for each worker and write B. Gradients of 1 MiB or
more, and buckets of smaller ones, leave while backward is still computing those before them.
"""

from .averaging import Averaging

__all__ = ["Averaging"]
