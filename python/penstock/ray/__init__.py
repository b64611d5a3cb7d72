"""
Jobs on Ray: servers and workers as actors in a placement group.

    import penstock as ps

    results = ps.ray.run(train, workers=4)       # `train` calls ps.init(), as under any launcher

Ray is loaded when a job is started, not when this package is imported.
"""

from penstock.ray.run import run

__all__ = ["run"]
