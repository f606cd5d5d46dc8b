"""What several processes run together in the tests of `paretograd.distributed`."""
