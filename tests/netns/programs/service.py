"""
A service with two jobs of two workers behind one acceptor. Prints where it
listens; ends with its standard input.

    service.py ADDRESS      GOOD, EVIL: the jobs' secrets, by environment
"""

import os
import sys

from penstock import _core

service = _core.Service([f"{sys.argv[1]}:0"], {})
for name in ("good", "evil"):
    service.create(name, os.environ[name.upper()], 0, 1, 2, {"lease": "20"}, 64 << 20, 1.0)
print("endpoint", service.endpoint, flush=True)
sys.stdin.read()
service.stop()
