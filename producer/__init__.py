"""What people run: the commands, prompt sources, sharding, the coordinator and what feeds and watches it."""
