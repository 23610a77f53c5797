"""``tidegate certify``: a user's job in the simulator, on its own sample input. Finds code that does not survive a failure."""
