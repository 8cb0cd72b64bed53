"""The version of penstock, which processes that work together must share."""

VERSION = "0.1.0"
