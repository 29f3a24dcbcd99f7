"""Residency and waves: how a grid is spread over the SMs in time. Standard library only."""
