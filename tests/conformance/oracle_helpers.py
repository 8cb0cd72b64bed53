"""The names that every program of the oracle may use, and the encoding of answers.

Plain Python that looks at public attributes only. The stored answers were encoded by these very
functions: a change here must leave every encoding as it is.
"""

import math
import os
import re
import tempfile
import threading
import types

import numpy as np

from penstock.data.dataset import Dataset
from penstock.distribute.backends import load
from penstock.distribute.devices import Device
from penstock.distribute.input.delivery_plan import plan_dataset
from penstock.distribute.input.distributed import DistributedDataset
from penstock.distribute.replicas import Replicas
from penstock.plan.shard import shard_plan
from tests.integration.chaos.cluster import free_port as free_port


def _num(x):
    if isinstance(x, (bool, np.bool_)):
        return bool(x)
    if isinstance(x, (int, np.integer)):
        return int(x)
    if isinstance(x, (float, np.floating)) or type(x).__name__ == "bfloat16":
        x = float(x)
        if math.isnan(x):
            return {"float": "nan"}
        if math.isinf(x):
            return {"float": "inf" if x > 0 else "-inf"}
        return x
    if isinstance(x, (complex, np.complexfloating)):
        return {"complex": [float(x.real), float(x.imag)]}
    if isinstance(x, (bytes, np.bytes_)):
        return {"b": bytes(x).decode("utf-8", "backslashreplace")}
    return x


def _arr(a):
    a = np.asarray(a)
    if a.ndim == 0:
        return _num(a.item())
    return [_arr(x) for x in a]


def J(x):
    """A value as JSON data; what JSON lacks is a dict with a telling key."""
    tn = type(x).__name__
    if x is None or isinstance(x, (str, bool)):
        return x
    if isinstance(x, (int, float, complex, bytes, np.generic)):
        return _num(x)
    if isinstance(x, np.ndarray):
        return _arr(x)
    if isinstance(x, BaseException):
        return E(x)
    if hasattr(x, "to_list") and hasattr(x, "row_splits"):
        return {"ragged": J(x.to_list())}
    if tn.startswith("SparseTensor") and hasattr(x, "dense_shape"):
        parts = ("indices", "values", "dense_shape")
        return {"sparse": {part: J(np.asarray(getattr(x, part))) for part in parts}}
    if tn.endswith("Spec") or tn in ("TensorShape", "DType"):
        return {"spec": re.sub(r" at 0x[0-9a-f]+", "", repr(x))}
    if hasattr(x, "values") and tn in (
        "PerReplica",
        "DistributedValues",
        "Mirrored",
        "MirroredVariable",
        "SyncOnReadVariable",
        "AutoPolicyVariable",
        "DistributedVariable",
    ):
        key = {"PerReplica": "per_replica", "Mirrored": "mirrored"}.get(tn, tn)
        return {key: [J(v) for v in x.values]}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return {"namedtuple": tn, "fields": {k: J(getattr(x, k)) for k in x._fields}}
    if isinstance(x, dict):
        return {str(k): J(v) for k, v in x.items()}
    if isinstance(x, tuple):
        return {"tuple": [J(v) for v in x]}
    if isinstance(x, (list, set, frozenset)):
        return [J(v) for v in (sorted(x) if isinstance(x, (set, frozenset)) else x)]
    if hasattr(x, "numpy"):
        return J(x.numpy())
    if hasattr(x, "element_spec") and hasattr(x, "map"):
        return {"dataset": [J(v) for v in x]}
    return {"repr": re.sub(r" at 0x[0-9a-f]+", "", repr(x))}


def clean(s):
    """Drop what depends on the run: addresses in memory and ports."""
    s = re.sub(r"0x[0-9a-f]{6,}", "0x_", s)
    return re.sub(r"(localhost|127\.0\.0\.1):\d+", r"\1:PORT", s)


def E(e):
    """Encode an exception: its class, the classes above it, and what it says (cleaned)."""
    m = getattr(e, "message", None)
    m = str(m) if m else str(e)
    above = [c.__name__ for c in type(e).__mro__][1:-3]
    return {"error": type(e).__name__, "mro": above, "message": clean(m)[:700]}


def err(fn, *a, **k):
    """Run fn; encode its exception, or {"ok": value} when none is raised."""
    try:
        r = fn(*a, **k)
    except Exception as e:
        return E(e)
    return {"ok": J(r)}


def els(ds, n=None):
    """Elements of a dataset/iterator, encoded (the first n when n is given)."""
    r = []
    for i, x in enumerate(ds):
        if n is not None and i >= n:
            break
        r.append(J(x))
        if n is not None and len(r) == n:
            break
    return r


def els_err(ds, n=None):
    """Like els, but an exception met on the way is appended as data."""
    r = []
    it = None
    try:
        it = iter(ds)
        while n is None or len(r) < n:
            r.append(J(next(it)))
    except StopIteration:
        r.append("<end>")
    except Exception as e:
        r.append(E(e))
    return r


def els_of(make, n=None):
    """els_err of the dataset that make() builds; building may fail too."""
    try:
        ds = make()
    except Exception as e:
        return [{"build": E(e)}]
    return els_err(ds, n)


def spec(x):
    """repr of element_spec, as text."""
    s = x.element_spec if hasattr(x, "element_spec") else x
    return re.sub(r" at 0x[0-9a-f]+", "", repr(s))


def card(ds):
    c = ds.cardinality()
    return int(c.numpy() if hasattr(c, "numpy") else c)


def DS(ds, n=None):
    """The standard record of a dataset: elements, element_spec and cardinality."""
    return {"elements": els(ds, n), "spec": spec(ds), "cardinality": card(ds)}


def T(x):
    """A tensor with its dtype and shape."""
    return {
        "dtype": x.dtype.name,
        "shape": [None if d is None else int(d) for d in x.shape],
        "value": J(x),
    }


def mirrored(tf, n):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(n)])


def tmpdir():
    return tempfile.mkdtemp(prefix="oracle_tmp_")


def auto_shard(ds, num_workers, index, num_replicas=None):
    """What a strategy applies on worker `index` of `num_workers`."""
    return Dataset(shard_plan(ds.__plan__, num_workers, index).plan)


def worker_stream(ds, num_workers, replicas_per_worker, index):
    """The stream of per-replica batches that worker `index` produces."""
    devices = tuple(Device("CPU", number) for number in range(replicas_per_worker))
    replicas = Replicas(load("numpy"), devices, num_workers, index)
    worker = types.SimpleNamespace(_replicas=replicas)
    steps = iter(DistributedDataset(worker, plan_dataset(worker, ds, None)))._steps[0]
    # Behind the last portion that is there, a step is filled with made-up ones.
    return (leaf for present, leaves in steps for leaf in leaves[:present])


def policy(tf, ds, name):
    o = tf.data.Options()
    o.experimental_distribute.auto_shard_policy = getattr(
        tf.data.experimental.AutoShardPolicy, name
    )
    return ds.with_options(o)


def make_files(counts, ext="txt"):
    """Text files a.txt, b.txt, ...; file k has counts[k] lines a0, a1, ..."""
    d = tmpdir()
    ps = []
    for k, c in enumerate(counts):
        n = "abcdefghij"[k]
        p = os.path.join(d, f"{n}.{ext}")
        with open(p, "w") as f:
            for i in range(c):
                f.write(f"{n}{i}\n")
        ps.append(p)
    return ps


def make_tfrecords(tf, counts):
    d = tmpdir()
    ps = []
    for k, c in enumerate(counts):
        n = "abcdefghij"[k]
        p = os.path.join(d, f"{n}.tfrecord")
        with tf.io.TFRecordWriter(p) as w:
            for i in range(c):
                w.write(f"{n}{i}".encode())
        ps.append(p)
    return ps


def base(x):
    """Replace temporary paths in encoded data by their base names."""
    if isinstance(x, dict):
        return {k: base(v) for k, v in x.items()}
    if isinstance(x, list):
        return [base(v) for v in x]
    if isinstance(x, str) and "oracle_tmp_" in x:
        return re.sub(r"/[^ ]*oracle_tmp_[^/ ]*/?", "TMP/", x)
    return x


class Cluster:
    def __init__(self, tf, num_workers, dispatcher=None, worker=None):
        s = tf.data.experimental.service
        self.tf, self.s = tf, s
        self.dispatcher = s.DispatchServer(s.DispatcherConfig(**(dispatcher or {})))
        self.target = self.dispatcher.target
        self.address = self.target.split("://")[1]
        self.worker_kw = {"heartbeat_interval_ms": 200, "dispatcher_timeout_ms": 1000}
        self.worker_kw.update(worker or {})
        self.workers = []
        for _ in range(num_workers):
            self.add_worker()

    def add_worker(self, **kw):
        k = self.worker_kw | kw
        w = self.s.WorkerServer(self.s.WorkerConfig(dispatcher_address=self.address, **k))
        self.workers.append(w)
        return w

    def dist(self, ds, mode="parallel_epochs", **kw):
        return ds.apply(self.s.distribute(mode, self.target, **kw))


def cluster(tf, n, **kw):
    return Cluster(tf, n, **kw)


def timed(fn, seconds):
    """Run fn in a daemon thread; give its value, its exception, or say that it
    was still running after `seconds`."""
    box = {}

    def go():
        try:
            box["ok"] = J(fn())
        except Exception as e:
            box["err"] = E(e)

    t = threading.Thread(target=go, daemon=True)
    t.start()
    t.join(seconds)
    if t.is_alive():
        return {"still_running_after_s": seconds}
    return box["err"] if "err" in box else {"ok": box["ok"]}


def flat(x):
    """Flatten batches of encoded data."""
    return [v for b in x for v in (b if isinstance(b, list) else [b])]
