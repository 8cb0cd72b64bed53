"""The same plan, computed by other processes: a dispatcher, workers, and clients that read.

Every element has an address. Whoever needs an element asks for it by address, and asking twice is
harmless; that is all that exactly-once delivery rests on.
"""
