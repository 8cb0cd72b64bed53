"""The program of each process of torchrun: the strategy reads its role from variables."""

import numpy as np

from penstock.distribute.multiworker import MultiWorkerMirroredStrategy
from tests.distribute.workers.team import say


def main() -> None:
    strategy = MultiWorkerMirroredStrategy(timeout=120)
    resolver = strategy.cluster_resolver
    assert resolver.task_id is not None
    total = strategy.reduce("SUM", np.float64(resolver.task_id + 1), axis=None)
    answer = [strategy.num_replicas_in_sync, float(total), type(resolver).__name__]
    say(str(resolver.task_id), answer)


if __name__ == "__main__":
    main()
