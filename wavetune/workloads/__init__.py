"""Logs of what models really ran: one parser a format, keys, tuning lists."""
