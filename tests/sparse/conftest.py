"""How jobs are run here, for every test of the folder."""

import sys
from pathlib import Path

# Behind all others: the workers here have names that modules of other tests may have.
sys.path.append(str(Path(__file__).parent))
