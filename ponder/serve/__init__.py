"""Solvers for many clients: one service behind HTTP, MCP and the web page."""
