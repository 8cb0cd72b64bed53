import subprocess
import sys

PROGRAM = """
import resource
from penstock.data import Dataset

list(Dataset.range(1))
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
for _ in range(100):
    elements = [bytes(100_000) for _ in range(20)]
    del elements
print(faults() - before)
"""


def test_elements_use_the_memory_of_elements_before_them():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    pages_of_one_round = 20 * 100_000 // 4096
    assert int(done.stdout) < 10 * pages_of_one_round
