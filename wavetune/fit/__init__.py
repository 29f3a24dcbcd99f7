"""From measurements to a latency model: forms, correction, survivors, cells."""
