"""Every message that processes of the service exchange, and how it is encoded."""
