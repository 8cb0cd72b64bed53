"""What dispatcher, worker and client decide: no sockets, no threads, no clocks, no randomness."""
