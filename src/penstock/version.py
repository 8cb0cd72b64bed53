"""The version of penstock, which may differ between the processes of a service."""

VERSION = "0.2.0"
