"""Every message that processes of the service exchange, and how they stand on a wire."""
