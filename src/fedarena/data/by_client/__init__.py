"""Published files whose samples have owners: common readers, and one way from rows to a federation of clients."""
