"""Ferrule's version, the one place for it."""

VERSION = "0.1.0"
