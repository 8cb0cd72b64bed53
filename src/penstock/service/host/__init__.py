"""The rim of the service: sockets, processes, disks, clocks; it acts on what `logic` decides."""
