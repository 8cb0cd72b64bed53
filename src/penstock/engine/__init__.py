"""The engine: a plan becomes chunks. Random access, streams, threads, processes, states."""
